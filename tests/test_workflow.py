"""Metrics are checked before a training, and the card and the weights of a run agree."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from safetensors.torch import save_file
from torch.distributed.fsdp import FSDPModule

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, workflow
from hf_vanilla.data.corpus import Pair
from hf_vanilla.data.dataset import LengthLimits, encode_corpora
from hf_vanilla.data.spoken import spoken_pairs
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.evaluation.measurements import Measurement, add_to_report, weights_of
from hf_vanilla.inference.alignments import Aligner
from hf_vanilla.inference.translator import Translator
from hf_vanilla.run_directory import NotARunError
from hf_vanilla.training.preparation import encoded_file
from hf_vanilla.training.recipe import RecipeError, load_recipe
from hf_vanilla.training.saving import RunInUseError, only_writer, seal
from hf_vanilla.workflow import average, check_scores, greedy_translations, update_card

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yaml"


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


@pytest.fixture
def encoded_run(run: Path) -> Path:
    """A run with a model, a tokenizer and encoded pairs."""
    pairs = [Pair((spoken,), written, "") for spoken, written in spoken_pairs("train", 60)]
    tokenizer = train_tokenizer([text for pair in pairs for text in (*pair.source, pair.target)], vocab_size=280)
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 8, "encoder_layers": 1, "decoder_layers": 2}
    VanillaForConditionalGeneration(VanillaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(run)
    tokenizer.save_pretrained(run)
    for split in ("train", "validation"):
        encode_corpora([pairs], tokenizer, LengthLimits(99, 99), encoded_file(run, split))
    return run


def test_the_chosen_alignment_is_in_the_generation_config_and_in_the_card(encoded_run: Path) -> None:
    file = encoded_run / "generation_config.json"
    before = json.loads(file.read_text())
    workflow.update_alignment(encoded_run)
    chosen = json.loads(file.read_text())
    alignment = chosen.pop("alignment")
    assert chosen == before
    assert (alignment["source_unit"], alignment["target_unit"], alignment["pairs"]) == ("word", "character", 60)
    assert 0 < alignment["error"] < 1
    translator = Translator.from_pretrained(encoded_run)
    (found,) = Aligner(translator.model, translator.tokenizer).align([("the fifth",)], ["5th"])
    assert len(found.links) == 3
    update_card(encoded_run)
    assert f"attention of decoder layer {alignment['layer'] + 1} (" in (encoded_run / "README.md").read_text()
    assert f"{100 * alignment['error']:.1f} % if the statistical" in (encoded_run / "README.md").read_text()
    workflow.update_alignment(encoded_run)
    assert json.loads(file.read_text())["alignment"] == alignment


def test_a_run_without_pairs_is_finished_without_an_alignment(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workflow.update_alignment(run)
    assert "no attention map could be chosen" in capsys.readouterr().err
    average(run, 2, "last")
    assert "## Alignments" not in (run / "README.md").read_text()


def test_pairs_are_taken_evenly() -> None:
    pairs = Dataset.from_dict({"source": list(range(1_001))})
    for number, step in ((1_001, 1), (5_000, 1), (1_000, 2), (7, 143)):
        assert workflow.spread(pairs, number)["source"] == list(range(0, 1_001, step))
