"""
The names of what is in a run directory, which is how training, evaluation and inference meet.

A run directory is an ordinary Hugging Face model directory (config, weights, tokenizer, code). This module names what
this package adds to it, and the files of transformers that it reads there.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECIPE = "recipe.yaml"  # what the run was started with: all keys, overrides included
DATA = "data"  # a folder with the encoded pairs of each split
HISTORY = "history.json"  # the log of the training
REPORT = "report.json"  # scores, and the weights that they were measured with
CARD = "README.md"
CURVE = "learning_curve.png"
UNFINISHED = "unfinished"  # a folder for what is being written
LOCK = ".lock"  # held by the process that writes the run

WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"

CHECKPOINT = "checkpoint-"  # followed by the step
STATE = "trainer_state.json"  # in a checkpoint
MANIFEST = "manifest.json"  # in a checkpoint

TIMING = ("runtime", "samples_per_second", "steps_per_second")


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


def validation_scores(entry: Mapping[str, Any]) -> dict[str, float]:
    """The loss and the scores in an entry of the log; empty if the entry is not from a validation."""
    found = {key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_")}
    return {name: value for name, value in found.items() if name not in TIMING and not name.startswith("bleu_")}
