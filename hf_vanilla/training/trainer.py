"""The thinnest possible Seq2SeqTrainer."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedModel, Seq2SeqTrainer
from transformers.trainer_utils import EvalLoopOutput

from ..data.batching import TokenBudgetBatches

Validate = Callable[[PreTrainedModel], Mapping[str, Any]]


class TrainingDivergedError(ArithmeticError):
    """The loss is no longer a number."""


class VanillaTrainer(Seq2SeqTrainer):
    """
    Seq2SeqTrainer with batches of a budget of tokens, a validation of texts, and a look at speed and at the loss.

    Args:
        train_batches: The batches of an epoch of `train_dataset`.
        eval_batches: The same for `eval_dataset`.
        validate: Scores of the model's own translations, to go with the loss.
    """

    def __init__(
        self,
        *args: Any,
        train_batches: TokenBudgetBatches,
        eval_batches: TokenBudgetBatches,
        validate: Validate,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.train_batches = train_batches
        self.eval_batches = eval_batches
        self.validate = validate
        self.target_tokens: torch.Tensor | int = 0
        self.last_log = time.perf_counter()

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.train_dataset, self.train_batches)

    def get_eval_dataloader(self, eval_dataset: str | Dataset[Any] | None = None) -> DataLoader[Any]:
        return self._loader(self.eval_dataset if eval_dataset is None else eval_dataset, self.eval_batches)

    def _loader(self, dataset: Any, batches: TokenBudgetBatches) -> DataLoader[Any]:
        loader = DataLoader(
            dataset,
            batch_sampler=batches,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
        )
        return self.accelerator.prepare(loader)

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        started = time.perf_counter()
        output = super().evaluation_loop(dataloader, description, True, ignore_keys, metric_key_prefix)
        scores = self.validate(self.model)
        output.metrics.update({f"{metric_key_prefix}_{name}": score for name, score in scores.items()})
        self.last_log += time.perf_counter() - started  # no time of the training
        return output

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        self.target_tokens = self.target_tokens + (inputs["labels"] != -100).sum()  # stays on the device
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(model, {**inputs, "skip_logits": True}, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            if not math.isfinite(float(logs["loss"])):
                raise TrainingDivergedError(
                    f"the loss is {logs['loss']} at step {self.state.global_step}: lower training.learning_rate "
                    f"({self.args.learning_rate}), warm up for longer (training.warmup_steps, "
                    f"{self.args.warmup_steps:g}), or set model.norm_first=true; the last checkpoint is still good"
                )
            now = time.perf_counter()
            tokens = int(self.target_tokens) * self.args.world_size
            logs["target_tokens_per_second"] = round(tokens / (now - self.last_log), 1)
            self.target_tokens = 0
            self.last_log = now
        super().log(logs, start_time)
