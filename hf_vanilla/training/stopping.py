"""Callbacks for trainings that are stopped from outside and go on later."""

import signal
import threading
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
        super().__init__(f"stopped by {name} after step {step:,}; the same command goes on from there")
        self.exit_code = 128 + number


class StopOnSignal(TrainerCallback):
    """
    After SIGTERM or Ctrl-C, saves a checkpoint at the end of the step and stops. A second signal stops at once.

    Several processes, which the signal may reach during different steps, all stop after the same step. Python allows
    signal handlers in the main thread only: in another thread, a training leaves signals alone.
    """

    def __init__(self) -> None:
        self.signal = 0
        self.previous_handlers: dict[int, Any] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        timeout = timedelta(seconds=args.ddp_timeout)
        self.group = dist.new_group(backend="gloo", timeout=timeout) if args.world_size > 1 else None
        if threading.current_thread() is threading.main_thread():
            self.previous_handlers = {number: signal.signal(number, self._note) for number in SIGNALS}

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
        """Trainer also calls this when it stops in the middle of an epoch: nothing is due then."""
        if self.signal and (state.epoch or 0) % 1:
            control.should_save = control.should_evaluate = False

    def restore_handlers(self) -> None:
        """Give signals back to whoever handled them before. To be called however the training ends."""
        while self.previous_handlers:
            number, handler = self.previous_handlers.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: it was not set by Python

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self.restore_handlers()


class IntervalsOfTheRecipe(TrainerCallback):
    """Has a resumed training log, validate and save as often as its recipe says now; Trainer would keep the old."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        state.compute_steps(args, state.max_steps)


class LogAtSaves(TrainerCallback):
    """Logs before each checkpoint, so that the log of a resumed training is that of one that was never stopped."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        control.should_log |= control.should_save
