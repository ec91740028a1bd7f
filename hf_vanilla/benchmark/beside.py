"""Two trainings at once on the same cores, against one that has them for itself."""

import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import harmonic_mean

from ..threads import WAYS_TO_WAIT
from ..training.preparation import prepare
from .rounds import Figures, Row, measured_rows
from .training import Job, speeds_of_ours

USUAL_SPINS = "300000"  # libgomp's default; if it is set by hand, our threads leave it at that


def compare_beside(recipe: Path, overrides: Sequence[str], steps: int, rounds: int) -> list[Row]:
    """Target tokens per second of one training and of two together, with threads that give way and that do not."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(recipe, tuple(overrides), Path(folder) / "long", steps)
        # Two whose threads spin are up to a hundred times slower.
        shorter = replace(job, prepared=Path(folder) / "short", steps=max(20, steps // 20))
        for chosen in (job, shorter):
            prepare(chosen.load(), chosen.prepared)
        contenders = {
            "two at once": partial(train_at_once, job, 2),
            "one alone": partial(train_at_once, job, 1),
            "two at once, threads always spin": partial(train_at_once, shorter, 2, always_spins=True),
            "one alone, threads always spin": partial(train_at_once, shorter, 1, always_spins=True),
        }
        return measured_rows(recipe.stem, contenders, rounds)


def train_at_once(job: Job, number: int, always_spins: bool = False) -> Figures:
    """Measure several trainings of the same job at the same time."""
    for name in WAYS_TO_WAIT:
        os.environ.pop(name, None)
    if always_spins:
        os.environ["GOMP_SPINCOUNT"] = USUAL_SPINS  # which libgomp reads when PyTorch is imported
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(number)
    with ProcessPoolExecutor(number, context, initializer=_wait_at, initargs=(start,)) as pool:
        speeds = list(pool.map(_train_one, [job] * number))
    return {"tokens per second": sum(speeds), "of the slowest": min(speeds)}


def _wait_at(start: Barrier) -> None:
    """Called in each new process after its imports, so that all of them begin to train at the same time."""
    start.wait()


def _train_one(job: Job) -> float:
    """The speed in the middle half of the steps: in these the other training is sure to run, too."""
    speeds = speeds_of_ours(job)
    quarter = len(speeds) // 4
    return harmonic_mean(speeds[quarter : len(speeds) - quarter])
