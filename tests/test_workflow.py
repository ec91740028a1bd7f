"""Scores are against the targets that the recipe says."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.fsdp import FSDPModule

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, workflow
from hf_vanilla.data.corpus import Pair
from hf_vanilla.training.recipe import RecipeError, load_recipe
from hf_vanilla.workflow import check_scores, greedy_translations, score

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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.metrics=[blue]", "unknown metric 'blue': the nearest is 'bleu'"),
        ("training.bleu_tokenize=13b", "13b"),
        ("training.metric_for_best_model=bleu", "'bleu' is none of loss, exact_match, character_error_rate"),
    ],
)
def test_metrics_that_do_not_exist_are_found_before_a_training(change: str, message: str) -> None:
    overrides = ["training.metrics=[exact_match, character_error_rate]", change]
    if "bleu_tokenize" in change:
        overrides[0] = "training.metrics=[bleu]"
    with pytest.raises(RecipeError) as error:
        check_scores(load_recipe(QUICKSTART, overrides))
    assert message in str(error.value)


def test_processes_that_hold_a_model_together_make_the_same_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorder:
        def __init__(self, *_: object):
            pass

        def translate(self, sources: list[list[str]], **_: object) -> list[str]:
            translated.append(len(sources))
            return ["" for _ in sources]

    translated: list[int] = []
    config = VanillaConfig(vocab_size=9, d_model=8, num_heads=2, d_ff=8, encoder_layers=1, decoder_layers=1)
    whole = VanillaForConditionalGeneration(config)
    sharded = VanillaForConditionalGeneration(config)
    sharded.__class__ = type("Sharded", (FSDPModule, VanillaForConditionalGeneration), {})
    monkeypatch.setattr(workflow, "Translator", Recorder)
    monkeypatch.setattr(workflow, "gather_object", lambda shares: shares * 2)
    monkeypatch.setattr(workflow, "PartialState", lambda: SimpleNamespace(process_index=0, num_processes=2))
    for model in (whole, sharded):
        assert len(greedy_translations(model, None, [["a"], ["b"], ["c"], ["d"]])) == 4
    assert translated == [2, 4]
