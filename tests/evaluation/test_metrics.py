"""The metrics against sacrebleu itself, n-grams counted by hand and the definition of the edit distance."""

import json
import logging
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import evaluate
import hypothesis.strategies as st
import pytest
import sacrebleu
from hypothesis import given, settings
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from hf_vanilla.evaluation.metrics import (
    METRICS,
    References,
    Scores,
    nearest_reference,
    report,
)
from hf_vanilla.evaluation.text_metric import TextMetric

HYPOTHESES = [
    "The cats sit on the mat.",
    "hello, World",
    "one two three four five six",
    "Nothing is alike",
    "So be it",
]
REFERENCES = [
    "The cat sat on the mat.",
    "Hello , world!",
    "one two three four 5 six seven",
    "All of it differs",
    "So be it",
]
SEVERAL = [
    ["The cat sat on the mat.", "Cats sit on the mat."],
    ["Hello , world!"],
    ["one two three four 5 six seven", "1 2 3 four five six", "six five four three two one"],
    ["All of it differs", "Nothing was alike"],
    ["So it be", "So be it"],
]
ERROR_RATES = ["character_error_rate", "token_error_rate"]
LOWER_IS_BETTER = [*ERROR_RATES, "ter"]

each_metric = pytest.mark.parametrize("name", METRICS)
each_error_rate = pytest.mark.parametrize("name", ERROR_RATES)
short_texts = st.text("ab ü", max_size=7)  # few letters, so that many are the same; one of two bytes
short_sentences = st.lists(st.sampled_from(["a", "ab", "ü", "iː", ""]), max_size=7)  # noqa: RUF001


def edits_by_definition(left: Sequence[str], right: Sequence[str]) -> int:
    @cache
    def edits(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        return min(edits(i - 1, j) + 1, edits(i, j - 1) + 1, edits(i - 1, j - 1) + (left[i - 1] != right[j - 1]))

    return edits(len(left), len(right))


def score(name: str, predictions: list[str], references: References, **options: Any) -> Scores:
    return report(predictions, references, metrics=[name], **options)


def number(scores: Scores, name: str) -> float:
    score = scores[name]
    assert isinstance(score, float)
    return score


def parsed(signature: object) -> dict[str, str]:
    assert isinstance(signature, str)
    return dict(item.split(":") for item in signature.split("|"))


def noisy_corpus(sentence_count: int, length: int) -> tuple[list[str], list[str]]:
    """Random references, and hypotheses with every tenth character another."""
    rng = random.Random(5)  # noqa: S311
    references = ["".join(rng.choices("abcdefghij    ", k=length)) for _ in range(sentence_count)]
    hypotheses = ["".join("x" if rng.random() < 0.1 else c for c in reference) for reference in references]
    return hypotheses, references


# BLEU and chrF


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("tokenize", ["13a", "none", "char"])
def test_bleu_is_that_of_sacrebleu(lowercase: bool, tokenize: str) -> None:
    scores = score("bleu", HYPOTHESES, REFERENCES, lowercase=lowercase, tokenize=tokenize)
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], lowercase=lowercase, tokenize=tokenize)
    assert scores["bleu"] == expected.score
    assert [scores[f"bleu_precision_{order}"] for order in (1, 2, 3, 4)] == expected.precisions
    assert scores["bleu_brevity_penalty"] == expected.bp < 1


def test_options_of_bleu_matter() -> None:
    options: list[dict[str, Any]] = [{}, {"lowercase": True}, {"tokenize": "none"}, {"tokenize": "char"}]
    scores = {score("bleu", HYPOTHESES, REFERENCES, **each)["bleu"] for each in options}
    assert len(scores) == len(options)


def test_bleu_of_ngrams_counted_by_hand() -> None:
    hypotheses = ["the the cat sat on the mat", "good morning"]
    references = ["the cat sat on the big red mat", "good morning to you"]
    scores = score("bleu", hypotheses, references)
    # "the" stands 3 times in the hypothesis and 2 times in the reference: 2 of them count. The second sentence adds 2
    # of 2 words and 1 of 1 pair. There are 9 words for 12.
    matches, totals = [6 + 2, 4 + 1, 3, 2], [7 + 2, 6 + 1, 5, 4]
    precisions = [100 * match / total for match, total in zip(matches, totals, strict=True)]
    assert [scores[f"bleu_precision_{order}"] for order in (1, 2, 3, 4)] == pytest.approx(precisions)
    assert scores["bleu_brevity_penalty"] == pytest.approx(math.exp(1 - 12 / 9))
    assert scores["bleu"] == pytest.approx(math.exp(1 - 12 / 9) * math.prod(precisions) ** (1 / 4))


@pytest.mark.parametrize("lowercase", [False, True])
def test_chrf_is_that_of_sacrebleu(lowercase: bool) -> None:
    scores = score("chrf", HYPOTHESES, REFERENCES, lowercase=lowercase)
    assert scores["chrf"] == CHRF(lowercase=lowercase).corpus_score(HYPOTHESES, [REFERENCES]).score
    assert (scores["chrf"] == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score) == (not lowercase)


@pytest.mark.parametrize("lowercase", [False, True])
def test_chrf_plus_plus_is_that_of_sacrebleu(lowercase: bool) -> None:
    scores = score("chrf++", HYPOTHESES, SEVERAL, lowercase=lowercase)
    metric = CHRF(lowercase=lowercase, word_order=2)
    assert scores["chrf++"] == metric.corpus_score(HYPOTHESES, list(zip_longest(*SEVERAL))).score
    assert scores["chrf++"] != score("chrf", HYPOTHESES, SEVERAL, lowercase=lowercase)["chrf"]
    assert parsed(scores["chrf++_signature"])["nw"] == "2"


def test_ter_is_that_of_sacrebleu() -> None:
    hypotheses, groups = HYPOTHESES * 9, [group * (1 + i % 2) for i, group in enumerate(SEVERAL * 9)]
    scores = score("ter", hypotheses, groups)  # lengths of references are thirds and halves: sums are rounded
    assert scores["ter"] == TER().corpus_score(hypotheses, list(zip_longest(*groups))).score
    assert parsed(scores["ter_signature"])["case"] == "lc"


def test_ter_counts_a_moved_phrase_once() -> None:
    moved, references = ["x y a b c d e"], ["a b c d e x y"]
    assert score("ter", moved, references)["ter"] == pytest.approx(100 * 1 / 7)
    assert score("token_error_rate", moved, references)["token_error_rate"] == pytest.approx(100 * 4 / 7)


def test_chrf_of_ngrams_counted_by_hand() -> None:
    # 3 of 3, 2 of 2 and 1 of 1 n-grams are right, and 3 of 4, 2 of 3 and 1 of 2 are found; none is longer.
    recall = (3 / 4 + 2 / 3 + 1 / 2) / 3
    f2 = (1 + 2**2) * recall / (2**2 + recall)
    assert score("chrf", ["abc"], ["abcd"])["chrf"] == pytest.approx(100 * f2)


def test_chrf_counts_recall_more_than_precision() -> None:
    longer = score("chrf", ["abcdef"], ["abcd"])
    shorter = score("chrf", ["abcd"], ["abcdef"])
    assert number(longer, "chrf") > number(shorter, "chrf")


def test_tokenised_text_is_warned_of_unless_it_was_declared(caplog: pytest.LogCaptureFixture) -> None:
    tokenised = ["This was a sentence ."] * 100
    with caplog.at_level(logging.WARNING):
        score("bleu", tokenised, tokenised, tokenize="none")
        assert not caplog.records
        score("bleu", tokenised, tokenised)
    assert "forgot to detokenize" in caplog.text


def test_signatures_say_what_was_computed() -> None:
    scores = report(HYPOTHESES, REFERENCES, lowercase=True, tokenize="char")
    facts = {"nrefs": "1", "case": "lc", "version": sacrebleu.__version__}
    assert parsed(scores["bleu_signature"]) == facts | {"tok": "char", "eff": "no", "smooth": "exp"}
    assert parsed(scores["chrf_signature"]) == facts | {"nc": "6", "nw": "0", "eff": "yes", "space": "no"}


def test_signatures_count_the_references() -> None:
    counted: dict[str, References] = {"1": REFERENCES, "2": [[text, "x"] for text in REFERENCES], "var": SEVERAL}
    for count, references in counted.items():
        scores = report(HYPOTHESES, references, metrics=["bleu", "chrf"])
        assert parsed(scores["bleu_signature"])["nrefs"] == parsed(scores["chrf_signature"])["nrefs"] == count


# Several references


def test_missing_references_count_like_repeated_ones() -> None:
    hypotheses, groups = [*HYPOTHESES, "Yes"], [*SEVERAL, ["Yes it is so"]]  # "Yes" is nearer to no words than to 4
    streams = [[group[min(position, len(group) - 1)] for group in groups] for position in range(3)]
    scores = report(hypotheses, groups)
    assert scores["bleu"] == sacrebleu.corpus_bleu(hypotheses, streams).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(hypotheses, streams).score


def test_order_of_references_is_irrelevant() -> None:
    assert report(HYPOTHESES, SEVERAL) == report(HYPOTHESES, [group[::-1] for group in SEVERAL])


@each_error_rate
def test_order_of_references_with_equal_rates_is_irrelevant(name: str) -> None:
    hypotheses, group = ["a b", "c c"], ["a x", "a b x y"]  # 1 of 2 tokens, 2 of 4
    rates = [report(hypotheses, [each, ["c x x"]], metrics=[name]) for each in (group, group[::-1])]
    assert rates[0] == rates[1]


@each_metric
@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_equal_reference_is_found_at_any_position(name: str, position: int) -> None:
    groups = [["z z z"] * position + [text] + ["z z z"] * (2 - position) for text in HYPOTHESES]
    scores = score(name, HYPOTHESES, groups)
    assert scores[name] == pytest.approx(0 if name in LOWER_IS_BETTER else 100)


@each_metric
def test_a_lone_reference_is_a_list_of_one(name: str) -> None:
    lone = score(name, HYPOTHESES, REFERENCES)
    assert lone == score(name, HYPOTHESES, [[text] for text in REFERENCES])


# Exact match


def test_exact_match_is_the_share_of_equal_sentences() -> None:
    hypotheses = ["same", "Same", "same ", "third", "", "other", "same", "x"]
    references = [["same"], ["same"], ["same"], ["first", "second", "third"], ["", "y"], ["oth"], ["same me"], ["y"]]
    assert score("exact_match", hypotheses, references) == {"exact_match": 100 * 3 / 8}


# Error rates


def edits(prediction: Sequence[str], reference: Sequence[str]) -> int:
    found, length = nearest_reference(prediction, [reference])
    assert length == len(reference)
    return found


@given(short_texts, short_texts)
@settings(deadline=None, max_examples=300)
def test_edits_of_characters_follow_their_definition(left: str, right: str) -> None:
    assert edits(left, right) == edits_by_definition(left, right)


@given(short_sentences, short_sentences)
@settings(deadline=None, max_examples=300)
def test_edits_of_tokens_follow_their_definition(left: list[str], right: list[str]) -> None:
    assert edits(left, right) == edits_by_definition(left, right)


@pytest.mark.parametrize(("left", "right"), [(29, 31), (64, 64), (65, 1), (3, 130), (130, 127)])
def test_edits_of_long_sentences_follow_their_definition(left: int, right: int) -> None:
    rng = random.Random(left)  # noqa: S311
    for tokens in ("abcd", ["a", "ab", "ü", "iː"]):  # noqa: RUF001
        sentences = [rng.choices(tokens, k=length) for length in (left, right)]
        assert edits(*sentences) == edits_by_definition(*sentences)


def test_symbols_of_any_length_are_one_token() -> None:
    assert edits(["t", "ʃ", "iː", "z"], ["tʃ", "iː", "s"]) == 3  # noqa: RUF001
    assert edits("🙂é", "é") == 1


def test_error_rates_are_edits_per_length_of_the_whole_corpus() -> None:
    hypotheses, references = ["kitten sat", "no"], ["sitting sat", "no no no"]
    characters = score("character_error_rate", hypotheses, references)
    assert characters == {"character_error_rate": pytest.approx(100 * (3 + 6) / (11 + 8))}
    tokens = score("token_error_rate", hypotheses, references)
    assert tokens == {"token_error_rate": pytest.approx(100 * (1 + 2) / (2 + 3))}


def test_error_rate_takes_the_reference_with_the_lowest_rate_not_with_the_fewest_edits() -> None:
    references = [["d e", "a b c x y z z z"]]  # 3 edits for 2 tokens; 5 for 8
    assert score("token_error_rate", ["a b c"], references)["token_error_rate"] == 100 * 5 / 8


def test_tokens_are_separated_by_any_white_space() -> None:
    scores = report(["  a\tb   c\n"], ["a b c"], metrics=list(ERROR_RATES))
    assert scores["token_error_rate"] == 0
    assert scores["character_error_rate"] == pytest.approx(100 * 6 / 5)


@each_error_rate
def test_error_rate_may_exceed_100_percent(name: str) -> None:
    assert number(score(name, ["a b c d"], ["a"]), name) > 100


@each_error_rate
def test_an_empty_hypothesis_is_all_errors(name: str) -> None:
    assert score(name, [""], ["a b"])[name] == 100


@each_error_rate
def test_an_empty_reference_counts_its_edits(name: str) -> None:
    assert score(name, ["b", "a"], ["", "a"])[name] == 100
    assert score(name, ["b", "a"], [["", "c"], ["a"]])[name] == 50
    assert score(name, ["", "a"], [["c", ""], ["a"]])[name] == 0


@each_error_rate
def test_references_without_any_symbol_are_refused(name: str) -> None:
    unit = {"character_error_rate": "characters", "token_error_rate": "tokens"}[name]
    with pytest.raises(ValueError, match=rf"error rate: 1 edits per 0 {unit} of reference; there must be at least 1"):
        score(name, ["a", ""], ["", ""])


def test_ten_thousand_sentences_take_less_than_three_seconds() -> None:
    hypotheses, references = noisy_corpus(10_000, 60)
    start = time.process_time()
    scores = score("character_error_rate", hypotheses, references)
    assert time.process_time() - start < 3
    assert 9 < number(scores, "character_error_rate") < 11


# As evaluate's metrics


@each_metric
def test_metrics_know_their_names(name: str) -> None:
    metric = TextMetric(name)
    assert isinstance(metric, evaluate.Metric)
    assert metric.name == name
    scores = metric.compute(predictions=HYPOTHESES, references=REFERENCES)
    assert name in scores
    assert all(key.startswith(name) for key in scores)
    assert metric.description.strip()


@each_metric
def test_what_is_added_in_parts_is_computed_as_a_whole(name: str) -> None:
    metric = TextMetric(name)
    metric.add(prediction=HYPOTHESES[0], reference=SEVERAL[0])
    metric.add(prediction=HYPOTHESES[1], reference=SEVERAL[1][0])
    metric.add_batch(predictions=HYPOTHESES[2:3], references=SEVERAL[2:3])
    parts = metric.compute(predictions=HYPOTHESES[3:], references=SEVERAL[3:])
    assert parts == score(name, HYPOTHESES, SEVERAL)


@each_metric
def test_computing_starts_anew(name: str) -> None:
    metric = TextMetric(name)
    metric.compute(predictions=HYPOTHESES, references=REFERENCES)
    scores = metric.compute(predictions=["x y"], references=["x z"])
    assert scores == score(name, ["x y"], ["x z"])


@each_metric
def test_a_refused_batch_leaves_nothing_behind(name: str) -> None:
    metric = TextMetric(name)
    metric.add_batch(predictions=HYPOTHESES[:2], references=REFERENCES[:2])
    with pytest.raises(ValueError, match="1 predictions and 2 references"):
        metric.add_batch(predictions=["a"], references=["b", "c"])
    scores = metric.compute(predictions=HYPOTHESES[2:], references=REFERENCES[2:])
    assert scores == score(name, HYPOTHESES, REFERENCES)


def test_combine_of_evaluate_merges_them_into_the_report() -> None:
    combined = evaluate.combine([TextMetric(name) for name in METRICS])
    assert combined.compute(predictions=HYPOTHESES, references=REFERENCES) == report(HYPOTHESES, REFERENCES)


# The report


def test_report_is_flat_json_of_all_metrics() -> None:
    scores = report(HYPOTHESES, SEVERAL)
    assert json.loads(json.dumps(scores)) == scores
    assert scores.keys() >= METRICS.keys() | {"bleu_signature", "chrf_signature"}
    assert all(type(score) is (str if name.endswith("signature") else float) for name, score in scores.items())


def test_report_has_the_chosen_metrics_only() -> None:
    assert list(report(HYPOTHESES, REFERENCES, metrics=["exact_match", "chrf"])) == [
        "exact_match",
        "chrf",
        "chrf_signature",
    ]


def test_options_reach_the_metrics_that_have_them() -> None:
    scores = report(HYPOTHESES, REFERENCES, lowercase=True, tokenize="none")
    assert scores["bleu"] == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], lowercase=True, tokenize="none").score
    assert parsed(scores["chrf_signature"])["case"] == "lc"
    assert scores["exact_match"] == 20


# Errors


@each_metric
@pytest.mark.parametrize(("predictions", "references"), [(2, 1), (1, 3), (0, 2), (2, 0), (0, 0)])
def test_unequal_or_no_numbers_of_sentences_are_refused(name: str, predictions: int, references: int) -> None:
    message = f"^{predictions} predictions and {references} references: there must be as many of each, and at least 1$"
    with pytest.raises(ValueError, match=message):
        score(name, ["a"] * predictions, ["a"] * references)
    with pytest.raises(ValueError, match=message):
        report(["a"] * predictions, [["a", "b"]] * references, metrics=[name])


@each_metric
def test_computing_without_anything_added_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="0 predictions and 0 references"):
        TextMetric(name).compute()


@each_metric
def test_a_sentence_without_references_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"references\[1\] are 0 references; there must be at least 1"):
        score(name, ["a", "b"], [["a"], []])


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ("ab", ["a", "b"], r"predictions must be a list of texts, not 'ab'"),
        (["a", "b"], "ab", r"references must be a list, not 'ab'"),
        (["a", None], ["a", "b"], r"predictions\[1\] must be a text, not None"),
        (["a", "b"], ["a", 7], r"references\[1\] must be a list of texts, not 7"),
        (["a", "b"], [["a"], ["b", 7]], r"references\[1\]\[1\] must be a text, not 7"),
    ],
)
def test_what_is_not_text_is_refused(predictions: Any, references: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        score("exact_match", predictions, references)
    with pytest.raises(TypeError, match=message):
        TextMetric("exact_match").add_batch(predictions=predictions, references=references)


@pytest.mark.parametrize("tokenizer", ["ja-mecab", "spm"])
def test_a_tokenizer_that_is_not_installed_is_said_in_one_line(tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise RuntimeError("\nextra dependencies are needed:\n    pip install sacrebleu[ja]\n")

    monkeypatch.setattr("hf_vanilla.evaluation.metrics.BLEU.__init__", missing)
    with pytest.raises(ValueError, match=rf"^tokenizer '{tokenizer}': extra dependencies are needed: pip install"):
        report(["a"], ["a"], tokenize=tokenizer)


def test_unknown_names_are_answered_with_the_nearest_known() -> None:
    with pytest.raises(ValueError, match=r"unknown metric 'blue': the nearest is 'bleu', of bleu, chrf, "):
        report(["a"], ["a"], metrics=["chrf", "blue"])
    with pytest.raises(ValueError, match=r"unknown metric 'word_error_rate': the nearest is 'token_error_rate'"):
        report(["a"], ["a"], metrics=["word_error_rate"])
    with pytest.raises(ValueError, match=r"unknown option 'lower_case': the nearest is 'lowercase', of "):
        report(["a"], ["a"], lower_case=True)
    with pytest.raises(ValueError, match=r"unknown tokenizer '13': the nearest is '13a', of none, "):
        report(["a"], ["a"], tokenize="13")


# Network, files and other processes

WORKER = """
import json, sys
attempts = []
sys.addaudithook(lambda event, _: attempts.append(event) if event in ("socket.connect", "socket.getaddrinfo") else None)
from hf_vanilla.evaluation.metrics import report
print("ready", flush=True)
texts = json.loads(sys.stdin.readline())
print(json.dumps([[report(*texts) for _ in range(20)], attempts]))
"""


def test_two_processes_at_once_report_the_same_without_network_and_files(tmp_path: Path) -> None:
    home, here, temporary = directories = [tmp_path / name for name in ("home", "here", "temporary")]
    for directory in directories:
        directory.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    worker = subprocess.Popen(
        [sys.executable, "-B", "-c", WORKER],
        env=environment | {"HOME": str(home), "TMPDIR": str(temporary)},
        cwd=here,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == "ready\n"
        print(json.dumps([HYPOTHESES, SEVERAL]), file=worker.stdin, flush=True)
        our_reports = [report(HYPOTHESES, SEVERAL) for _ in range(20)]
        its_reports, network_attempts = json.loads(worker.communicate(timeout=60)[0])
    finally:
        worker.kill()
    assert all(each == our_reports[0] for each in [*our_reports, *its_reports])
    assert network_attempts == []
    assert [*home.iterdir(), *here.iterdir()] == []
