"""
The names of what is in a run directory, which is how training, evaluation and inference meet.

A run directory is an ordinary Hugging Face model directory (config, weights, tokenizer, code). This module names what
this package adds to it, and the files of transformers that it reads there.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import manifest

RECIPE = "recipe.yaml"  # what the run was started with: all keys, overrides included
DATA = "data"  # a folder with the encoded pairs of each split
PREPARED = "prepared.json"  # what text and which tokenizer the encoded pairs were made with
HISTORY = "history.json"  # the log of the training
REPORT = "report.json"  # scores, and the weights that they were measured with
CARD = "README.md"
CURVE = "learning_curve.png"
UNFINISHED = "unfinished"  # a folder for what is being written
LOCK = ".lock"  # held by the process that writes the run

WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
GENERATION_CONFIG = "generation_config.json"
MODEL_CONFIG = "model_config.json"  # our configuration in an export that has another config.json

ALIGNMENT = "alignment"  # a key of the generation config: which attention map is an alignment, as chosen after training

CHECKPOINT = "checkpoint-"  # followed by the step
STATE = "trainer_state.json"  # in a checkpoint

LEFT_BY_A_START = {LOCK, UNFINISHED, f"{RECIPE}.partial", f"{PREPARED}.partial"}
"""All that a training which is killed at its very start can leave. The lock comes first."""

TIMING = ("runtime", "samples_per_second", "steps_per_second")


class NotARunError(FileExistsError):
    """A directory that this package did not write, or not a directory at all."""


def is_run(folder: Path) -> bool:
    """Whether there is a recipe, and a file beside it that only this package writes."""
    signs = [
        LOCK,
        PREPARED,
        HISTORY,
        *(f"{checkpoint.name}/{manifest.MANIFEST}" for checkpoint in checkpoints_of(folder)),
    ]
    return (folder / RECIPE).is_file() and any((folder / sign).is_file() for sign in signs)


def require_run(folder: Path) -> None:
    """Refuse to change a directory that is not a run."""
    if not is_run(folder):
        raise NotARunError(f"{folder} is not a run directory of hf_vanilla: give one that `hf-vanilla train` has made")


def refuse_foreign(folder: Path) -> None:
    """Refuse to write a run into a directory with other contents. What a killed start leaves is not other contents."""
    if folder.exists() and not folder.is_dir():
        raise NotARunError(f"{folder} is a file: choose another --output")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    is_new = not names or LOCK in names <= LEFT_BY_A_START
    if not (is_new or is_run(folder)):
        first = ", ".join(sorted(names)[:3])
        raise NotARunError(
            f"{folder} is not empty ({first}) and not a run directory of hf_vanilla: choose another --output; "
            "nothing was changed"
        )


def checkpoints_of(run: Path) -> list[Path]:
    """The checkpoints, from the first step to the last."""
    found = (path for path in run.glob(f"{CHECKPOINT}*") if path.name.removeprefix(CHECKPOINT).isdecimal())
    return sorted(found, key=step_of)


def checkpoint_of(run: Path, step: int) -> Path:
    return run / f"{CHECKPOINT}{step}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(CHECKPOINT))


def read_history(run: Path) -> list[dict[str, Any]]:
    """The log of a finished training; empty before the training is finished."""
    file = run / HISTORY
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []


def read_origin(run: Path) -> dict[str, Any]:
    """What the run was started from (`training.origin.Origin`); empty if from nothing."""
    file = run / PREPARED
    return (json.loads(file.read_text(encoding="utf-8")).get("origin") or {}) if file.exists() else {}


def validation_scores(entry: Mapping[str, Any]) -> dict[str, float]:
    """The loss and the scores in an entry of the log; empty if the entry is not from a validation."""
    found = {key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_")}
    return {name: value for name, value in found.items() if name not in TIMING and not name.startswith("bleu_")}
