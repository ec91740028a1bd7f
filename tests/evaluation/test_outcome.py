"""What is measured of test sets and systems, side by side."""

import json

from hf_vanilla.evaluation.examples import Examples
from hf_vanilla.evaluation.metrics import METRICS, metrics_with, report
from hf_vanilla.evaluation.outcome import Outcome, System, as_json, as_table, outcome_of

REFERENCES = [["the cat sat", "a cat sat"], ["on the mat"], ["all day long"], ["12 times"]]
GOOD, BAD = ["a cat sat", "on the mat", "all day", "12 times"], ["a dog sat", "on mat", "long", "12 times"]


def outcomes(*names: str, metrics: tuple[str, ...] = tuple(METRICS), against: bool = False) -> list[Outcome]:
    chosen = metrics_with({}, metrics)
    baseline = System("bad.txt", BAD) if against else None
    sets = [Examples(name, range(4), None, REFERENCES) for name in names]
    return [outcome_of(each, chosen, System("good.txt", GOOD), baseline) for each in sets]


def test_scores_are_those_of_the_report_of_a_training_but_for_the_signatures() -> None:
    (found,) = outcomes("a")
    expected = report(GOOD, REFERENCES)
    assert list(found.scores) == list(expected)
    assert {name: score for name, score in found.scores.items() if isinstance(score, float)} == {
        name: score for name, score in expected.items() if isinstance(score, float)
    }
    assert "|bs:1000|seed:12345|" in str(found.scores["bleu_signature"])
    assert found.confidence.keys() == METRICS.keys()


def test_systems_are_compared_on_the_same_resamples_and_change_nothing_of_each_other() -> None:
    (alone,), (compared,) = outcomes("a"), outcomes("a", against=True)
    assert (compared.scores, compared.confidence) == (alone.scores, alone.confidence)
    assert compared.baseline is not None
    assert (compared.baseline.system, compared.baseline.hypotheses) == ("bad.txt", BAD)
    assert compared.baseline.scores["exact_match"] == 25
    assert compared.p_values.keys() == METRICS.keys()


def test_a_subset_of_the_rows_is_scored_alone() -> None:
    part = Examples("part", [2, 0], None, [REFERENCES[2], REFERENCES[0]])
    found = outcome_of(part, metrics_with({}, ["exact_match"]), System("s", GOOD))
    assert found.hypotheses == ["all day", "a cat sat"]
    assert found.scores["exact_match"] == 50


def test_the_table_has_a_column_for_each_test_set_and_a_row_for_each_metric() -> None:
    lines = as_table(outcomes("news", "a very long name", metrics=("exact_match", "ter"))).splitlines()
    assert lines[0].split("  ")[-1] == "a very long name"
    assert lines[1].split() == ["sentences", "4", "4"]
    assert lines[2].split()[:2] == ["exact_match", "75.00"]
    assert lines[2].count(" ± ") == lines[3].count(" ± ") == 2
    assert len({len(line) for line in lines[:4]}) == 1  # columns are aligned
    assert lines[-1].startswith("ter_signature: nrefs:var|bs:1000")
    assert len(lines) == 7  # the signature, which is the same for both, stands there once


def test_the_table_says_whether_a_difference_is_significant() -> None:
    sentences = [[f"w{number} x y z"] for number in range(40)]
    right, wrong = [group[0] for group in sentences], ["v"] * 40
    chosen = metrics_with({}, ["exact_match"])
    for other, p in ((wrong, "0.001*"), (right, "1.000")):
        outcome = outcome_of(Examples("a", range(40), None, sentences), chosen, System("s", right), System("t", other))
        table = as_table([outcome]).splitlines()
        assert table[0].split() == ["a", "t", "p"]
        assert table[2].split()[-1] == p
        assert "p: how likely" in table[5]


def test_json_has_everything_by_the_names_of_the_test_sets() -> None:
    found = json.loads(json.dumps(as_json(outcomes("a", "b", against=True))))
    assert list(found) == ["a", "b"]
    assert found["a"].keys() == {"system", "sentences", "scores", "confidence", "against"}
    assert found["a"]["scores"]["exact_match"] == 75
    assert found["a"]["confidence"]["exact_match"].keys() == {"mean", "ci"}
    assert found["a"]["against"].keys() == {"system", "scores", "confidence", "p_values"}
    assert 0 < found["a"]["against"]["p_values"]["chrf++"] <= 1
