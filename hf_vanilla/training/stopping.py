"""What stops a training from outside, and that it can go on."""

import signal
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class TrainingStoppedError(Exception):
    """A signal stopped the training after it had saved a checkpoint."""

    def __init__(self, number: int, step: int):
        name = signal.Signals(number).name
        super().__init__(f"stopped by {name} behind step {step:,}; the same command goes on from there")
        self.exit_code = 128 + number


class StopOnSignal(TrainerCallback):
    """
    Saves a checkpoint and stops behind the step in which SIGTERM or Ctrl-C came; a second one stops at once.

    On several processes, which signals may reach a step apart, all stop behind the same step.
    """

    def __init__(self) -> None:
        self.signal = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        timeout = timedelta(seconds=args.ddp_timeout)
        self.group = dist.new_group(backend="gloo", timeout=timeout) if args.world_size > 1 else None
        self.handlers = {number: signal.signal(number, self._note) for number in SIGNALS}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.group is not None:
            highest = torch.tensor(self.signal)
            dist.all_reduce(highest, dist.ReduceOp.MAX, self.group)
            self.signal = int(highest)
        if self.signal:
            control.should_save = control.should_training_stop = True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Trainer calls it also in the middle of an epoch, if that is where it stops."""
        if self.signal and (state.epoch or 0) % 1:
            control.should_save = control.should_evaluate = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)


class IntervalsOfTheRecipe(TrainerCallback):
    """Has a training that goes on log, validate and save as often as its recipe says now: Trainer keeps to the old."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        state.compute_steps(args, state.max_steps)


class LogAtSaves(TrainerCallback):
    """Has what was not logged yet logged before a checkpoint, so that the log goes on from there as without a stop."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        control.should_log |= control.should_save
