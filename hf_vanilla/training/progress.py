"""Progress of a training: lines on stderr."""

import time
from datetime import timedelta
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..messages import say
from ..run_directory import validation_scores


class ProgressLines(TrainerCallback):
    """
    One line for each log of the Trainer, with an estimate of the time that is left.

    Args:
        padding: The share of padding among the tokens of the batches.
    """

    def __init__(self, padding: float):
        self.padding = padding

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.started, self.first_step = time.perf_counter(), state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        logs = logs or {}
        place = f"step {state.global_step:,} of {state.max_steps:,}"
        if "loss" in logs:
            parts = [
                f"loss {logs['loss']:.3f}",
                f"learning rate {logs['learning_rate']:.2e}",
                f"{logs['target_tokens_per_second']:,.0f} target tokens/s",
                f"padding {self.padding:.1%}",
                f"{self._left(state)} left",
            ]
        elif "eval_loss" in logs:
            parts = ["validation", *(f"{name} {value:.2f}" for name, value in validation_scores(logs).items())]
        else:
            return
        say("  ".join([place, *parts]))

    def _left(self, state: TrainerState) -> timedelta:
        seconds = (time.perf_counter() - self.started) / max(1, state.global_step - self.first_step)
        return timedelta(seconds=round(seconds * (state.max_steps - state.global_step)))
