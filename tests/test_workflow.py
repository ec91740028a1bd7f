"""Scores are against the targets that the recipe says."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.fsdp import FSDPModule

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, workflow
from hf_vanilla.data.corpus import Pair
from hf_vanilla.evaluation.measurements import Measurement, add_to_report, weights_of
from hf_vanilla.run_directory import NotARunError
from hf_vanilla.training.recipe import RecipeError, load_recipe
from hf_vanilla.training.saving import RunInUseError, only_writer, seal
from hf_vanilla.workflow import average, check_scores, greedy_translations, score, update_card

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


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two checkpoints."""
    folder = tmp_path / "run"
    for step in (1, 2):
        checkpoint = folder / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        save_file({"a": torch.full((2, 3), float(step))}, checkpoint / "model.safetensors")
        (checkpoint / "trainer_state.json").write_text(json.dumps({"log_history": []}))
        seal(checkpoint, step)
    (folder / "recipe.yaml").write_text(load_recipe(QUICKSTART).text)
    return folder


def test_after_averaging_the_card_has_no_scores_of_the_weights_before(run: Path) -> None:
    average(run, 1, "last")
    add_to_report(run, "test", Measurement({"bleu": 41.5}, weights_of(run)))
    update_card(run)
    assert "41.50" in (run / "README.md").read_text()
    average(run, 2, "last")
    assert "41.50" not in (run / "README.md").read_text()
    assert "The weights have not been measured" in (run / "README.md").read_text()
    average(run, 1, "last")
    assert "41.50" in (run / "README.md").read_text()


def test_a_run_that_is_being_written_is_not_averaged(run: Path) -> None:
    with only_writer(run), pytest.raises(RunInUseError):
        average(run, 2, "last")
    assert not (run / "model.safetensors").exists()


def test_only_a_run_is_averaged(run: Path) -> None:
    (run / "recipe.yaml").unlink()
    before = sorted(run.rglob("*"))
    with pytest.raises(NotARunError, match="is not a run directory of hf_vanilla"):
        average(run, 2, "last")
    assert sorted(run.rglob("*")) == before


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
        assert len(greedy_translations(model, None, [["a"], ["b"], ["c"], ["d"]], [""] * 4)) == 4
    assert translated == [2, 4]
