"""Confidence intervals and p-values are those of the program `sacrebleu`, on text as files have it."""

import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sacrebleu.significance import PairedTest

from hf_vanilla.evaluation import significance
from hf_vanilla.evaluation.metrics import METRICS, SacrebleuMetric, metrics_with
from hf_vanilla.evaluation.significance import Confidence, confidence_of, p_value, resample, scores_of_resamples
from hf_vanilla_cli import main

WORDS = [
    "Der",
    "Hund",
    "läuft",
    "über",
    "die",
    "Straße",
    ",",
    ".",
    "3,5",
    "U.S.A.",
    "猫が",
    "好き",
    "İstanbul",
    "(wow)",
    "é",
]
NAMES = {"BLEU": "bleu", "chrF2": "chrf", "chrF2++": "chrf++", "TER": "ter"}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of 60 lines: two references, and three systems that are worse and worse."""
    folder, rng = tmp_path_factory.mktemp("texts"), random.Random(4)  # noqa: S311
    truth = [rng.choices(WORDS, k=rng.randint(0, 20)) for _ in range(60)]
    for name, noise in (("ref1", 0.0), ("ref2", 0.2), ("good", 0.25), ("bad", 0.35), ("worse", 0.6)):
        lines = [" ".join(rng.choice(WORDS) if rng.random() < noise else word for word in words) for words in truth]
        lines[3] += " \t "
        lines[4] += " \u2028 a\x0bb"  # a line only ends at \n
        lines[5] += "\r"
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    return folder


def sacrebleu_program(*arguments: str, cwd: Path) -> str:
    command = [sys.executable, "-m", "sacrebleu", *arguments, "-w", "12", "--quiet", "--no-color"]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300, "check": True}
    return subprocess.run(command, cwd=cwd, env=os.environ | {"NO_COLOR": "1"}, **options).stdout


def our_program(*arguments: str, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(cwd)
    done = CliRunner().invoke(main, ["evaluate", *arguments, "--name", "set", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["set"]


@pytest.mark.parametrize(
    ("references", "tokenize", "lowercase", "word_order"),
    [
        (["ref1"], "13a", False, 0),
        (["ref1", "ref2"], "intl", True, 2),
        (["ref2", "ref1"], "char", False, 2),
        (["ref1"], "zh", True, 0),
    ],
)
def test_scores_and_intervals_are_those_of_the_sacrebleu_program(
    texts: Path,
    references: list[str],
    tokenize: str,
    lowercase: bool,
    word_order: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = json.loads(
        sacrebleu_program(
            *references,
            *("-i", "good", "-m", "bleu", "chrf", "ter", "--confidence", "--tokenize", tokenize),
            *("--chrf-word-order", str(word_order)),
            *(["--lowercase", "--chrf-lowercase"] if lowercase else []),
            cwd=texts,
        )
    )
    given = [argument for name in references for argument in ("--reference", name)]
    options = ["--tokenize", tokenize, *(["--lowercase"] if lowercase else [])]
    ours = our_program("--hypothesis", "good", *given, *options, cwd=texts, monkeypatch=monkeypatch)
    assert len(theirs) == 3
    for each in theirs:
        name = NAMES[each["name"]]
        assert each["signature"] == ours["scores"][f"{name}_signature"]
        assert each["score"] == float(f"{ours['scores'][name]:.12f}")
        found = ours["confidence"][name]
        assert (found["mean"], found["ci"]) == pytest.approx((each["confidence_mean"], each["confidence_var"]), 1e-6)
        assert 0 < each["score"] < 100


def test_paired_tests_are_those_of_the_sacrebleu_program(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("-i", "bad", "good", "-m", "bleu", "chrf", "ter", "--chrf-word-order", "2", "--paired-bs")
    theirs = sacrebleu_program("ref1", "ref2", *arguments, "--format", "text", cwd=texts)
    number = r"(\d+\.\d+)"
    rows = re.findall(rf"{number} \({number} ± {number}\)", theirs)
    p_values = [float(p) for p in re.findall(rf"\(p = {number}\)", theirs)]
    references = ("--reference", "ref1", "--reference", "ref2")
    ours = our_program("--hypothesis", "good", *references, "--against", "bad", cwd=texts, monkeypatch=monkeypatch)
    names = ["bleu", "chrf++", "ter"]
    assert len(rows) == 2 * len(names)
    for system, found in ((ours["against"], rows[:3]), (ours, rows[3:])):
        for name, (score, mean, ci) in zip(names, found, strict=True):
            assert float(score) == float(f"{system['scores'][name]:.12f}")
            expected = pytest.approx((float(mean), float(ci)), 1e-6)
            assert (system["confidence"][name]["mean"], system["confidence"][name]["ci"]) == expected
    assert [round(ours["against"]["p_values"][name], 4) for name in names] == p_values
    assert max(p_values) > 0.001  # or agreement would mean little


@pytest.mark.parametrize("name", ["bleu", "chrf", "chrf++", "ter"])
def test_means_intervals_and_p_values_are_those_of_sacrebleu_bit_by_bit(texts: Path, name: str) -> None:
    lines = {file.name: file.read_bytes().decode().split("\n")[:60] for file in texts.iterdir()}
    ours, theirs = (metrics_with({}, [name])[0] for _ in range(2))
    references = [list(pair) for pair in zip(lines["ref1"], lines["ref2"], strict=True)]
    counts = [ours.counts(lines[system], references) for system in ("bad", "good")]
    scores = [scores_of_resamples(ours, resample(each)) for each in counts]
    assert isinstance(theirs, SacrebleuMetric)
    systems = [(system, lines[system]) for system in ("bad", "good")]
    _, found = PairedTest(systems, {name: theirs.metric}, [lines["ref1"], lines["ref2"]], "bs")()
    (baseline, system) = next(values for key, values in found.items() if key != "System")
    assert [confidence_of(each) for each in scores] == [Confidence(each.mean, each.ci) for each in (baseline, system)]
    difference = float(ours.scores(counts[1])[name]) - float(ours.scores(counts[0])[name])
    assert p_value(difference, scores[1], scores[0]) == system.p_value < 0.3


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_an_interval_around_its_score(texts: Path, name: str) -> None:
    lines = {file.name: file.read_text().split("\n")[:60] for file in texts.iterdir()}
    (metric,) = metrics_with({}, [name])
    counts = metric.counts(lines["bad"], [[line] for line in lines["ref1"]])
    found = confidence_of(scores_of_resamples(metric, resample(counts)))
    score = metric.scores(counts)[name]
    assert found.mean - found.ci < score < found.mean + found.ci
    assert 0 < found.ci < 30


def test_the_interval_of_a_share_is_that_of_the_binomial_distribution() -> None:
    (metric,) = metrics_with({}, ["exact_match"])
    counts = metric.counts(["a"] * 400, [["a" if number % 4 else "b"] for number in range(400)])
    found = confidence_of(scores_of_resamples(metric, resample(counts)))
    assert found.mean == pytest.approx(75, abs=0.3)
    assert found.ci == pytest.approx(100 * 1.96 * (0.75 * 0.25 / 400) ** 0.5, rel=0.1)


def test_what_is_drawn_does_not_depend_on_how_much_is_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = np.random.default_rng(1).integers(0, 9, size=(37, 5)).astype(float)
    at_once = resample(counts)
    monkeypatch.setattr(significance, "MAX_CELLS", 37 * 7)
    assert np.array_equal(resample(counts), at_once)
    assert len(at_once) == 1000


def test_counts_of_any_size_are_summed_exactly() -> None:
    counts = np.full((64, 1), 2**24 + 1, dtype=float)
    assert set(resample(counts)[:, 0]) == {64 * (2**24 + 1)}


def test_systems_that_are_the_same_do_not_differ() -> None:
    scores = np.linspace(10, 20, 1000)
    assert p_value(0.0, scores, scores) == 1.0
    assert p_value(5.0, scores, scores - 5) == 1 / 1001
    other = np.random.default_rng(0).permutation(scores)
    assert p_value(0.0, scores, other) > 0.3


def test_a_hundred_thousand_sentences_are_resampled_in_seconds() -> None:
    counts = np.random.default_rng(1).integers(0, 99, size=(100_000, 24)).astype(float)
    start = time.process_time()
    sums = resample(counts)
    assert time.process_time() - start < 5
    assert sums.shape == (1000, 24)
