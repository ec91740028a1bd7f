"""The checkpoints of a run: list them, verify them, find the best, average their weights."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from .. import manifest
from ..files import settle, sync
from ..manifest import MANIFEST
from ..run_directory import STATE, WEIGHTS, checkpoints_of, step_of


class DamagedCheckpointError(ValueError):
    """A checkpoint is no longer what was saved. The message names the file."""


def manifest_of(checkpoint: Path, step: int) -> str:
    """Step, and the size and checksum of every file of a checkpoint, as JSON with a checksum of its own."""
    return manifest.manifest_of(checkpoint, {"step": step})


def verify(checkpoint: Path) -> None:
    """Raise DamagedCheckpointError unless all files of a checkpoint are as its manifest says."""
    try:
        step = manifest.read_manifest(checkpoint)["step"]
        if step != step_of(checkpoint):
            raise DamagedCheckpointError(f"{checkpoint / MANIFEST} is of step {step}")
        manifest.verify(checkpoint)
    except manifest.ManifestError as error:
        raise DamagedCheckpointError(str(error)) from None


def best_checkpoints(run: Path, number: int, metric: str, greater_is_better: bool) -> list[Path]:
    """The checkpoints with the best validation scores, the best first."""
    checkpoints = checkpoints_of(run)
    history = json.loads((checkpoints[-1] / STATE).read_text(encoding="utf-8"))["log_history"] if checkpoints else []
    scores = {entry["step"]: entry[f"eval_{metric}"] for entry in history if f"eval_{metric}" in entry}
    validated = [checkpoint for checkpoint in checkpoints if step_of(checkpoint) in scores]
    return sorted(validated, key=lambda path: scores[step_of(path)], reverse=greater_is_better)[:number]


def average_checkpoints(run: Path, number: int, which: str, metric: str, greater_is_better: bool) -> list[Path]:
    """Replace the weights of the run by the mean of its `last` checkpoints, or of the `best` ones by the metric."""
    best = which == "best"
    chosen = best_checkpoints(run, number, metric, greater_is_better) if best else checkpoints_of(run)[-number:]
    if best and not chosen and checkpoints_of(run):
        raise FileNotFoundError(
            f"no checkpoint in {run} was validated by {metric} at its step: choose training.eval_steps so that "
            "validations and checkpoints meet (training.save_steps), or average the last"
        )
    save_weights(average_weights(chosen), run)
    return chosen


def average_weights(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of every weight, summed in float64 with one checkpoint in memory at a time."""
    if not checkpoints:
        raise FileNotFoundError("there is no checkpoint to average; training.save_steps says when there will be")
    total: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for checkpoint in checkpoints:
        verify(checkpoint)
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
    """Write under another name and rename, so that the old weights stay until the new ones are complete."""
    partial = folder / f"{WEIGHTS}.partial"
    save_file(weights, partial, metadata={"format": "pt"})
    settle(folder, [partial])
    partial.replace(folder / WEIGHTS)
    sync(folder)
