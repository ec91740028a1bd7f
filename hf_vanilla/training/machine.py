"""The machine that a training runs on: whether it can, and with how many threads."""

import os
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ..messages import say
from ..threads import NUMBER_OF_THREADS, usable_cores


class UnsupportedSystemError(OSError):
    """Training needs what this operating system does not have."""


def refuse_unsupported_systems() -> None:
    """Rather than fail in the middle of a run: locks and checkpoints are made for, and tested on, POSIX systems."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        raise UnsupportedSystemError(
            "training needs Linux or macOS (Windows: WSL): without their file locks and synchronised folders, two "
            "trainings could write one run, and a checkpoint could be lost; translating and evaluating work here, too"
        ) from None


class ThreadsOfTheRun(TrainerCallback, ExportableState):
    """
    Says what a training runs on, and has one that goes on use as many threads as it began with. With another number of
    processes each step has other batches, and that is said.

    Threads add up parts of a sum each, so their number decides how sums are rounded: with another one, a run that was
    stopped ends with slightly other weights than one that was not. The number is saved with each checkpoint.
    """

    def __init__(self, threads: int | None = None, processes: int | None = None):
        self.threads = threads or torch.get_num_threads()
        self.processes = processes

    def state(self) -> dict[str, Any]:
        return {"args": {"threads": self.threads, "processes": self.processes}, "attributes": {}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.device.type == "cpu":
            self._keep_their_number()
        if self.processes not in (None, args.world_size):
            say(
                f"this run was trained by {self.processes} processes and goes on with {args.world_size}: from here on "
                "its steps have more or fewer pairs, and some pairs of this epoch come twice or not at all; with "
                f"{self.processes} processes again it would end with the weights of a training without a stop"
            )
        self.processes = args.world_size
        say(what_it_runs_on(args))

    def _keep_their_number(self) -> None:
        now = torch.get_num_threads()
        if self.threads != now and NUMBER_OF_THREADS in os.environ:
            say(
                f"this run used {self.threads} threads and goes on with {now}, as {NUMBER_OF_THREADS} says: sums are "
                "rounded in other ways, so its weights will not be, bit for bit, those of a training without a stop; "
                f"with {NUMBER_OF_THREADS}={self.threads} they are"
            )
            self.threads = now
        elif self.threads != now:
            torch.set_num_threads(self.threads)
            if self.threads > usable_cores():
                say(
                    f"this run goes on with the {self.threads} threads that it began with, on {usable_cores()} cores: "
                    f"{NUMBER_OF_THREADS}={usable_cores()} is faster, but does not end with exactly the same weights"
                )


def what_it_runs_on(args: TrainingArguments) -> str:
    precision = "bfloat16" if args.bf16 else "float16" if args.fp16 else None
    parts = [
        f"training on {'the CPU' if args.device.type == 'cpu' else args.device}",
        f"{args.world_size} processes" if args.world_size > 1 else None,
        _threads_of(args) if args.device.type == "cpu" else None,
        f"products in {precision}, weights in float32" if precision else "float32",
    ]
    return ", ".join(part for part in parts if part)


def _threads_of(args: TrainingArguments) -> str:
    threads = torch.get_num_threads()
    return f"{threads} thread{'s' if threads > 1 else ''}{' each' if args.world_size > 1 else ''}"
