"""The checkpoints of a run: list them, find the best, average their weights."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

WEIGHTS = "model.safetensors"
STATE = "trainer_state.json"


def checkpoints_of(run: Path) -> list[Path]:
    """From the first to the last."""
    found = [path for path in run.glob("checkpoint-*") if (path / WEIGHTS).exists() and (path / STATE).exists()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def best_checkpoints(run: Path, number: int, metric: str, greater_is_better: bool) -> list[Path]:
    """The checkpoints with the best validation, the best first."""
    checkpoints = checkpoints_of(run)
    history = json.loads((checkpoints[-1] / STATE).read_text(encoding="utf-8"))["log_history"] if checkpoints else []
    scores = {entry["step"]: entry[f"eval_{metric}"] for entry in history if f"eval_{metric}" in entry}
    validated = [checkpoint for checkpoint in checkpoints if step_of(checkpoint) in scores]
    return sorted(validated, key=lambda path: scores[step_of(path)], reverse=greater_is_better)[:number]


def average_checkpoints(run: Path, number: int, which: str, metric: str, greater_is_better: bool) -> list[Path]:
    """Give the run the mean of the weights of its `last` checkpoints, or of its `best` by the metric."""
    best = which == "best"
    chosen = best_checkpoints(run, number, metric, greater_is_better) if best else checkpoints_of(run)[-number:]
    save_weights(average_weights(chosen), run)
    return chosen


def average_weights(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of every weight, summed in float64 one checkpoint after the other."""
    if not checkpoints:
        raise FileNotFoundError("there is no checkpoint to average; training.save_steps says when there will be")
    total: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for checkpoint in checkpoints:
        with safe_open(checkpoint / WEIGHTS, framework="pt") as weights:
            names = set(weights.keys())
            if total and names != set(total):
                raise ValueError(f"{checkpoint} has other weights than {checkpoints[0]}")
            for name in names:
                weight = weights.get_tensor(name)
                dtypes[name] = weight.dtype
                total[name] = total[name].add_(weight.double()) if name in total else weight.double()
    return {name: (weight / len(checkpoints)).to(dtypes[name]) for name, weight in total.items()}


def save_weights(weights: dict[str, Tensor], folder: Path) -> None:
    """Under another name first, so that the old weights are there until the new ones are."""
    partial = folder / f"{WEIGHTS}.partial"
    save_file(weights, partial, metadata={"format": "pt"})
    partial.rename(folder / WEIGHTS)
