"""A training that goes on takes the steps that it would have taken: the same examples, tokens and losses."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trial_kills import command, what_was_learnt

from hf_vanilla.data.corpus import read_pairs
from hf_vanilla.models import guard_vanilla
from hf_vanilla.training.preparation import checksum_of_tokenizer
from hf_vanilla.training.recipe import Recipe, RecipeError, load_recipe, refuse_another_recipe
from hf_vanilla.training.run import train
from hf_vanilla.training.stopping import SIGNALS, StopOnSignal
from hf_vanilla.training.trainer import TrainingDivergedError
from hf_vanilla.workflow import greedy_translations

CONFIGS = Path(__file__).parents[2] / "configs"
STEPS = 21
RECIPE = {
    "data.train.size": 60,
    "data.validation.size": 4,
    "data.test.size": 4,
    "tokenizer.kind": "character",
    "model.d_model": 16,
    "model.d_ff": 16,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "data.max_source_length": 90,
    "data.max_target_length": 90,
    "training.max_tokens": 90,
    "training.max_steps": STEPS,
    "training.warmup_steps": 5,
    "training.logging_steps": 4,
    "training.eval_strategy": "no",
    "training.metric_for_best_model": "loss",
    "training.save_steps": 1,
    "training.average_checkpoints": 1,
}
Step = tuple[Any, ...]


@pytest.mark.parametrize(
    "variant",
    [
        {"tokenizer.kind": "bpe", "tokenizer.vocab_size": 300, "tokenizer.dropout": 0.2, "training.r_drop": 5},
        {"training.gradient_accumulation_steps": 4},
        {"training.dataloader_num_workers": 2},
    ],
    ids=["BPE-dropout and R-Drop", "accumulation", "two loader workers"],
)
def test_twenty_moments_to_go_on_from(variant: dict[str, object], steps_taken: list[Step], tmp_path: Path) -> None:
    chosen = RECIPE | variant

    def trained(run: Path, save_steps: int = 1) -> tuple[list[Step], list[object], dict[str, Tensor]]:
        steps_taken.clear()
        overrides = chosen | {"training.save_steps": save_steps}
        recipe = load_recipe(CONFIGS / "quickstart.yaml", [f"{key}={value}" for key, value in overrides.items()])
        train(recipe, run, lambda *_: [], lambda *_: {})
        history = json.loads((run / "history.json").read_text())
        return list(steps_taken), [entry["loss"] for entry in history if "loss" in entry], weights_of(run)

    steps, losses, weights = trained(tmp_path / "unbroken")
    first_batches = [batch for step, batch, *_ in steps if step < 5]
    assert len({batch for _, batch, *_ in steps}) > len(first_batches) / 2  # not the same one all the time
    for step in range(1, STEPS):
        broken = tmp_path / "broken"
        shutil.copytree(tmp_path / "unbroken", broken)
        for later in range(step + 1, STEPS + 1):
            shutil.rmtree(broken / f"checkpoint-{later}")
        logs_alike = step % 7 == 0  # each save logs and costs more than a step: the others save in the end only
        steps_again, losses_again, weights_again = trained(broken, save_steps=1 if logs_alike else STEPS)
        assert steps_again == [taken for taken in steps if taken[0] >= step]
        assert losses_again == losses or not logs_alike
        assert all(torch.equal(weights_again[name], weight) for name, weight in weights.items())
        shutil.rmtree(broken)


def weights_of(run: Path) -> dict[str, Tensor]:
    return load_file(run / "model.safetensors")


def test_a_signal_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    def start(run: Path) -> warm.Process:
        arguments = [sys.executable, "-m", "hf_vanilla", *command(run, training__save_steps=50)]
        return warm.Process(arguments, stderr=subprocess.PIPE)

    for number, code, name in ((signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "SIGINT")):
        with start(tmp_path / "stopped") as training:
            said = []
            for line in training.stderr:
                said.append(line)
                if line.startswith("step ") and len(said) > 2:
                    training.send_signal(number)
                    break
            said += training.stderr.readlines()
        assert training.returncode == code, said
        assert f"stopped by {name} after step" in said[-1]
        assert "the same command goes on from there" in said[-1]
    for run in ("stopped", "unbroken"):
        with start(tmp_path / run) as training:
            said = training.stderr.read()
        assert training.returncode == 0, said
    found, expected = (load_file(tmp_path / run / "model.safetensors") for run in ("stopped", "unbroken"))
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    before = what_was_learnt(tmp_path / "unbroken")
    with start(tmp_path / "unbroken") as training:  # a training that is complete takes no step
        assert not [line for line in training.stderr if line.startswith("step ")]
    assert what_was_learnt(tmp_path / "unbroken") == before


QUICKSTART = CONFIGS / "quickstart.yaml"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("training.learning_rate=0.1", "training.learning_rate (0.002 before, 0.1 now)"),
        ("model.d_model=64", "model.d_model"),
        ("tokenizer.kind=word", "tokenizer.kind (bpe before, word now)"),
        ("training.seed=7", "training.seed (not given before, 7 now)"),
        ("data.train.size=100", "data.train"),
        ("training.max_steps=99", "training.max_steps (2600 before, 99 now)"),  # the cosine would be another one
    ],
)
def test_a_run_does_not_go_on_with_another_recipe(tmp_path: Path, change: str, named: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(load_recipe(QUICKSTART).text)
    with pytest.raises(RecipeError, match="was begun with another recipe") as refusal:
        refuse_another_recipe(load_recipe(QUICKSTART, [change]), file)
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    "change", ["training.max_steps=99", "training.save_steps=3", "generation.num_beams=2", "data.test.size=5"]
)
def test_what_decides_nothing_about_a_step_may_change(tmp_path: Path, change: str) -> None:
    file, without_end = tmp_path / "recipe.yaml", "training.lr_scheduler_type=inverse_sqrt"
    file.write_text(load_recipe(QUICKSTART, [without_end]).text)
    refuse_another_recipe(load_recipe(QUICKSTART, [without_end, change]), file)


def nothing(model: Any, tokenizer: Any, sources: Sequence[Any], prefixes: Sequence[str]) -> list[str]:
    return ["" for _ in sources]


def small_recipe(**changes: object) -> Recipe:
    chosen = RECIPE | {key.replace("__", "."): value for key, value in changes.items()}
    return load_recipe(QUICKSTART, [f"{key}={value}" for key, value in chosen.items()])


def test_a_run_without_its_data_goes_on_as_with_it(tmp_path: Path) -> None:
    """Its text is encoded again, with the tokenizer that the checkpoints have."""
    recipe = small_recipe(tokenizer__kind="bpe", tokenizer__vocab_size=300, training__save_steps=7)
    train(recipe, tmp_path, nothing, lambda *_: {})
    expected = weights_of(tmp_path)
    shutil.rmtree(tmp_path / "data")
    shutil.rmtree(tmp_path / f"checkpoint-{STEPS}")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(RecipeError, match=r"training\.seed"):
        train(small_recipe(training__seed=7), tmp_path, nothing, lambda *_: {})
    train(recipe, tmp_path, nothing, lambda *_: {})
    assert all(torch.equal(weights_of(tmp_path)[name], weight) for name, weight in expected.items())
    assert checksum_of_tokenizer(AutoTokenizer.from_pretrained(tmp_path)) in (tmp_path / "prepared.json").read_text()


def test_a_training_that_goes_on_saves_as_often_as_its_recipe_says_now(tmp_path: Path) -> None:
    train(small_recipe(training__save_steps=4), tmp_path, nothing, lambda *_: {})
    for later in (16, 20, STEPS):
        shutil.rmtree(tmp_path / f"checkpoint-{later}", ignore_errors=True)
    train(small_recipe(training__save_steps=3), tmp_path, nothing, lambda *_: {})
    steps = sorted(int(folder.name.rpartition("-")[2]) for folder in tmp_path.glob("checkpoint-*"))
    assert steps == [4, 8, 12, 15, 18, 21]


def test_validations_take_our_own_search_and_the_weights_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[bool] = []
    usual = guard_vanilla.greedy_search

    def recorded(*arguments: Any) -> Tensor:
        searched.append(torch.is_autocast_enabled("cpu"))
        return usual(*arguments)

    monkeypatch.setattr(guard_vanilla, "greedy_search", recorded)
    recipe = small_recipe(training__eval_strategy="steps", training__eval_steps=STEPS, training__bf16="true")
    train(recipe, tmp_path, greedy_translations, lambda *_: {})
    assert set(searched) == {False}


def test_validations_change_nothing_about_the_training(tmp_path: Path) -> None:
    for run, strategy in (("without", "no"), ("with", "steps")):
        recipe = small_recipe(training__eval_strategy=strategy, training__eval_steps=2)
        train(recipe, tmp_path / run, greedy_translations, lambda *_: {})
    without, validated = (weights_of(tmp_path / run) for run in ("without", "with"))
    assert all(torch.equal(validated[name], weight) for name, weight in without.items())


def test_a_finished_run_whose_checkpoints_are_gone_is_not_trained_again(tmp_path: Path) -> None:
    train(small_recipe(), tmp_path, nothing, lambda *_: {})
    expected = weights_of(tmp_path)
    for checkpoint in tmp_path.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    with pytest.raises(RecipeError, match="is finished, and has no checkpoint to go on from: measure it"):
        train(small_recipe(), tmp_path, nothing, lambda *_: {})
    assert all(torch.equal(weights_of(tmp_path)[name], weight) for name, weight in expected.items())


def test_a_training_in_another_thread_leaves_signals_alone(tmp_path: Path) -> None:
    handlers = [signal.getsignal(number) for number in SIGNALS]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(train, small_recipe(), tmp_path, nothing, lambda *_: {}).result()
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    assert (tmp_path / f"checkpoint-{STEPS}").exists()


def test_signals_are_given_back_however_a_training_ends(tmp_path: Path) -> None:
    handlers = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(TrainingDivergedError):
        train(small_recipe(training__learning_rate=1e30), tmp_path, nothing, lambda *_: {})
    assert [signal.getsignal(number) for number in SIGNALS] == handlers


@pytest.mark.parametrize(("epoch", "goes_on"), [(1.5, False), (2.0, True)])
def test_a_stop_in_mid_epoch_is_not_the_end_of_the_epoch(epoch: float, goes_on: bool) -> None:
    stop, state, arguments = StopOnSignal(), TrainerState(epoch=epoch), TrainingArguments("unused", use_cpu=True)
    stop.group, stop.signal = None, signal.SIGTERM
    control = TrainerControl(should_evaluate=True)
    stop.on_step_end(arguments, state, control)
    assert control.should_save
    assert control.should_evaluate  # what is due in the last step is done
    assert control.should_training_stop
    stop.on_epoch_end(arguments, state, control)
    assert control.should_save == control.should_evaluate == goes_on


def test_the_validation_loss_is_a_mean_over_tokens(tmp_path: Path) -> None:
    recipe = small_recipe(training__eval_strategy="steps", training__eval_steps=STEPS, data__validation__size=30)
    train(recipe, tmp_path, nothing, lambda *_: {})
    (found,) = (
        entry["eval_loss"] for entry in json.loads((tmp_path / "history.json").read_text()) if "eval_loss" in entry
    )
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval(), AutoTokenizer.from_pretrained(tmp_path)
    losses, tokens = 0.0, 0
    for pair in read_pairs(recipe.data.validation):
        inputs = tokenizer(pair.source[0], text_target=pair.target, return_tensors="pt")
        with torch.no_grad():
            losses += float(model(**inputs).loss) * inputs["labels"].numel()
        tokens += inputs["labels"].numel()
    assert found == pytest.approx(losses / tokens, rel=1e-5)
