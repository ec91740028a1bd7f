"""How fast a recipe trains with this package, and with transformers' own classes on the same data."""

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from ..data.batching import TokenBudgetBatches
from ..data.dataset import PairCollator, TrainingPairs, lengths_of
from ..interop.stock_classes import stock_model
from ..memory import keep_freed_memory, peak_memory
from ..run_directory import read_history
from ..threads import giving_way, limit_threads
from ..training.arguments import training_arguments
from ..training.preparation import Prepared, prepare
from ..training.recipe import Recipe, load_recipe
from ..training.run import new_model, train
from .peak import operations_per_token, peak_of_products
from .rounds import Figures, Row, measured_rows

WARM_UP = 5  # steps before those that are measured
AT_ITS_BEST: dict[str, Any] = {"bf16": True, "train_sampling_strategy": "group_by_length"}
NAMES = {"source_ids": "input_ids", "target_ids": "labels"}  # ours, and those that transformers' collator knows


@dataclass(frozen=True)
class Job:
    """A recipe, the folder with its prepared data, and the number of steps to measure."""

    recipe: Path
    overrides: tuple[str, ...]
    prepared: Path
    steps: int

    def load(self) -> Recipe:
        measured: dict[str, Any] = {
            "max_steps": WARM_UP + self.steps,
            "logging_steps": WARM_UP,
            "average_checkpoints": 1,
        }
        measured |= {"eval_strategy": "no", "save_strategy": "no", "early_stopping_patience": "null", "use_cpu": "true"}
        overrides = [f"training.{key}={value}" for key, value in measured.items()]
        overrides.append("tokenizer.dropout=0.0")  # which the peers do not have
        return load_recipe(self.recipe, [*self.overrides, *overrides])


def compare_training(recipe: Path, overrides: Sequence[str], steps: int, rounds: int) -> list[Row]:
    """Target tokens per second (without padding), peak memory, and the share of the speed of matrix products alone."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(recipe, tuple(overrides), Path(folder), steps)
        prepare(job.load(), job.prepared)
        contenders = {
            "hf_vanilla": partial(train_ours, job),
            "transformers, Seq2SeqTrainer's defaults": partial(train_theirs, job),
            "transformers, bf16 and grouped by length": partial(train_theirs, job, **AT_ITS_BEST),
            "transformers, the same, freed memory kept": partial(train_theirs, job, keeps_memory=True, **AT_ITS_BEST),
        }
        return measured_rows(recipe.stem, contenders, rounds)


def train_ours(job: Job) -> Figures:
    speed = harmonic_mean(speeds_of_ours(job))
    return {"tokens per second": speed, "MiB": peak_memory() / 2**20, "share of peak": speed / highest_speed(job)}


def speeds_of_ours(job: Job) -> list[float]:
    """Target tokens per second of all measured intervals, of the command `train` without its validations."""
    limit_threads()
    with giving_way(partial(print, file=sys.stderr)), tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        shutil.copytree(job.prepared, run)
        train(job.load(), run, lambda *_: [], lambda *_: {})
        logs = [entry for entry in read_history(run) if "loss" in entry]
    return [entry["target_tokens_per_second"] for entry in logs[1:]]


@torch.autocast("cpu", torch.bfloat16)
def highest_speed(job: Job) -> float:
    """Target tokens per second if a step took only its matrix products, in bfloat16 and as fast as they ever were."""
    recipe = job.load()
    prepared = prepare(recipe, job.prepared)
    model = new_model(recipe, prepared.tokenizer).train()
    examples = TrainingPairs(prepared.train)
    collate = PairCollator(prepared.tokenizer.pad_token_id)
    plan = TokenBudgetBatches(lengths_of(prepared.train), recipe.training.max_tokens)
    batches = (collate([examples[key] for key in keys]) for keys in islice(plan, 3))
    peak = peak_of_products(model.config, recipe.training.max_tokens, torch.bfloat16)
    return peak / operations_per_token(model, batches)


def train_theirs(job: Job, keeps_memory: bool = False, **arguments: Any) -> Figures:
    """With `Seq2SeqTrainer` and batches of as many sentences as ours have on average."""
    if keeps_memory:  # as ours does
        keep_freed_memory()
    recipe = job.load()
    with tempfile.TemporaryDirectory() as folder:
        prepared, ours = prepare(recipe, job.prepared), training_arguments(recipe, Path(folder))
        model = stock_model(new_model(recipe, prepared.tokenizer).config)
        meter = Meter()
        trainer = Seq2SeqTrainer(
            model,
            Seq2SeqTrainingArguments(
                folder,
                per_device_train_batch_size=batch_size_of(recipe, prepared),
                max_steps=WARM_UP + job.steps,
                label_smoothing_factor=recipe.model.get("label_smoothing", 0.1),
                learning_rate=ours.learning_rate,
                save_strategy="no",
                logging_strategy="no",
                use_cpu=ours.use_cpu,
                disable_tqdm=True,
                **arguments,
            ),
            train_dataset=prepared.train.select_columns(list(NAMES)).rename_columns(NAMES),
            data_collator=CountingCollator(prepared.tokenizer, model, meter),
            callbacks=[meter],
        )
        trainer.remove_callback(PrinterCallback)  # it prints on stdout, where the table goes
        trainer.train()
    speed = meter.tokens / meter.seconds
    return {"tokens per second": speed, "MiB": peak_memory() / 2**20, "share of peak": speed / highest_speed(job)}


def batch_size_of(recipe: Recipe, prepared: Prepared) -> int:
    return len(prepared.train) // len(TokenBudgetBatches(lengths_of(prepared.train), recipe.training.max_tokens))


class Meter(TrainerCallback):
    """Counts the tokens and seconds of the measured steps."""

    def __init__(self) -> None:
        self.steps = self.tokens = 0
        self.seconds = self.started = 0.0

    def on_step_end(self, *arguments: Any, **kwargs: Any) -> None:
        self.steps += 1
        if self.steps == WARM_UP:
            self.started, self.tokens = time.perf_counter(), 0
        self.seconds = time.perf_counter() - self.started


class CountingCollator(DataCollatorForSeq2Seq):
    def __init__(self, tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel, meter: Meter):
        super().__init__(tokenizer, model)
        self.meter = meter

    def __call__(self, features: Any, return_tensors: str | None = None) -> dict[str, Tensor]:
        batch = super().__call__(features, return_tensors)
        self.meter.tokens += int((batch["labels"] != self.label_pad_token_id).sum())
        return batch
