"""report.json keeps what was measured, and what older versions wrote can be read."""

import json
from pathlib import Path

import pytest

from hf_vanilla.evaluation.examples import Examples
from hf_vanilla.evaluation.measurements import (
    Measurement,
    Sample,
    add_to_report,
    measurement_of,
    part_of,
    read_report,
)
from hf_vanilla.evaluation.metrics import metrics_with
from hf_vanilla.evaluation.outcome import System, as_json, outcome_of
from hf_vanilla.evaluation.significance import Confidence


def test_what_is_added_is_read_again(tmp_path: Path) -> None:
    whole = Measurement({"bleu": 1.5}, "abc", (Sample(["a", "b"], "x", "y"),), {"bleu": Confidence(1.4, 0.2)}, 7)
    add_to_report(tmp_path, "test", whole)
    assert read_report(tmp_path) == {"test": whole}


def test_a_split_that_is_measured_again_replaces_its_parts(tmp_path: Path) -> None:
    old, new = Measurement({"bleu": 1.0}), Measurement({"bleu": 2.0})
    for name in ("validation", "test", part_of("test", "a.en"), part_of("test", "b.en"), "test2"):
        add_to_report(tmp_path, name, old)
    add_to_report(tmp_path, "test", new)
    add_to_report(tmp_path, part_of("test", "a.en"), new)
    scores = {name: entry.scores["bleu"] for name, entry in read_report(tmp_path).items()}
    assert scores == {"validation": 1.0, "test2": 1.0, "test": 2.0, "test: a.en": 2.0}


@pytest.mark.parametrize("entry", [{"bleu": 3.0}, {"scores": {"bleu": 3.0}, "weights": None, "samples": []}])
def test_reports_of_earlier_versions_are_read(tmp_path: Path, entry: dict[str, object]) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"test": entry}))
    assert read_report(tmp_path) == {"test": Measurement({"bleu": 3.0})}


def test_a_measurement_says_of_an_outcome_what_is_printed(tmp_path: Path) -> None:
    examples = Examples("test", range(3), [("a", "b"), ("c",), ("d",)], [["x"], ["y", "z"], ["w"]])
    outcome = outcome_of(examples, metrics_with({}, ["exact_match"]), System("s", ["x", "z", "v"]))
    measurement = measurement_of(outcome, "abc", 2)
    assert measurement.samples == [Sample(("a", "b"), "x", "x"), Sample(("c",), "z", "y")]
    add_to_report(tmp_path, "test", measurement)
    entry, printed = json.loads((tmp_path / "report.json").read_text())["test"], as_json([outcome])["test"]
    assert {key: entry[key] for key in ("scores", "confidence", "sentences")} == {
        key: printed[key] for key in ("scores", "confidence", "sentences")
    }
    assert measurement_of(outcome, "abc", 0).samples == []
