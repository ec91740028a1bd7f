"""Scores are against the targets that the recipe says."""

from pathlib import Path

import pytest

from hf_vanilla.data.corpus import Pair
from hf_vanilla.training.recipe import load_recipe
from hf_vanilla.workflow import score

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
PAIRS = [Pair((source,), target, "") for source, target in (("a", "1"), ("b", "2 2"), ("a", "3"), ("a", "1 1"))]


@pytest.mark.parametrize(
    ("grouped", "translations", "exact_match"),
    [
        ("true", ["3", "2 2", "3", "3"], 100.0),  # either pronunciation of a is right, and a counts once
        ("true", ["3", "0", "3", "3"], 50.0),
        ("true", ["0", "2 2", "0", "0"], 50.0),
        ("false", ["3", "2 2", "3", "3"], 50.0),
    ],
)
def test_grouped_sources_count_once_and_are_right_if_any_target_is(
    grouped: str, translations: list[str], exact_match: float
) -> None:
    recipe = load_recipe(QUICKSTART, [f"training.group_references={grouped}"])
    assert score(recipe, translations, PAIRS)["exact_match"] == exact_match
