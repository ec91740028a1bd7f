"""Ranks wait for the first one however long it takes, and those that do not see the same do not train together."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hf_vanilla.data.corpus import Pair
from hf_vanilla.data.dataset import LengthLimits, encode_corpora
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.training.preparation import Prepared
from hf_vanilla.training.ranks import NETWORK_DELAY, appears, differences

HERE = Path(__file__).parent
Outcome = list[dict[str, Any]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Of each trial the exit code of both ranks, when they ended, and what they said."""
    arguments = [sys.executable, HERE / "trial_ranks.py", tmp_path_factory.mktemp("ranks")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        ("two_directories", "two_directories/b/unfinished on rank 1, but there on rank 0"),
        ("two_recipes", "training.learning_rate is 0.5 on rank 1, but 0.002 on rank 0"),
        (
            "somebody_elses_directory",
            "somebody_elses_directory is not empty (README.md) and not a run directory of hf_vanilla",
        ),
    ],
)
def test_all_ranks_say_what_keeps_them_from_training_together(
    outcomes: dict[str, Outcome], trial: str, message: str
) -> None:
    for rank in outcomes[trial]:
        assert rank["code"] != 0
        assert message in rank["said"]
        assert "step 2 of" not in rank["said"]


def test_a_preparation_that_takes_longer_than_the_timeout_ends_no_rank(outcomes: dict[str, Outcome]) -> None:
    assert [rank["code"] for rank in outcomes["a_long_preparation"]] == [0, 0]
    assert "step 2 of 2" in outcomes["a_long_preparation"][0]["said"]


def test_the_death_of_the_first_rank_ends_those_that_wait_for_it(outcomes: dict[str, Outcome]) -> None:
    first, other = outcomes["a_death_during_preparation"]
    assert first["code"] == -9
    assert other["code"] > 0
    assert "rank 0 ended while rank 1 waited for it" in other["said"]


def test_differences_are_named_with_rank_and_values() -> None:
    same = {"recipe": "a", "pairs": 5}
    assert differences([same, dict(same), dict(same)]) == []
    assert differences([same, same, {"recipe": "a", "pairs": 7}]) == ["pairs is 7 on rank 2, but 5 on rank 0"]
    assert differences([same, {"recipe": "a"}]) == ["pairs is not given on rank 1, but 5 on rank 0"]
    assert differences([same, same | {"more": 1}]) == ["more is 1 on rank 1, but not given on rank 0"]
    assert len(differences([same, {"recipe": "b", "pairs": 6}, {"recipe": "c", "pairs": 6}])) == 4
    assert differences([{"text": "x" * 999}, {"text": "y" * 999}]) == [
        f"text is {'y' * 200} on rank 1, but {'x' * 200} on rank 0"
    ]


def test_ranks_compare_tokenizer_number_and_lengths(tmp_path: Path) -> None:
    def prepared(name: str, learnt_from: str, targets: list[str]) -> Prepared:
        tokenizer, limits = train_tokenizer([learnt_from], "character"), LengthLimits(20, 20)
        pairs = [Pair(("a b",), target, "") for target in targets]
        encoded, _ = encode_corpora([pairs], tokenizer, limits, tmp_path / f"{name}.arrow")
        return Prepared(tokenizer, encoded, encoded)

    first = prepared("first", "a b c", ["a", "b c"]).checksums()
    assert prepared("again", "c a b", ["a", "b c"]).checksums() == first
    for name, learnt_from, targets, number_of_differences in (
        ("tokenizer", "a b c d", ["a", "b c"], 1),
        ("number", "a b c", ["a"], 4),
        ("lengths", "a b c", ["a", "b"], 2),
    ):
        assert len(differences([first, prepared(name, learnt_from, targets).checksums()])) == number_of_differences


def test_a_file_that_never_appears_is_not_waited_for_long(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert appears(tmp_path / "file")
    began = time.monotonic()
    assert not appears(tmp_path / "folder" / "file")
    assert time.monotonic() - began < NETWORK_DELAY + 1
