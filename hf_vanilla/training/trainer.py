"""The thinnest possible Seq2SeqTrainer."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader, Dataset
from transformers import EarlyStoppingCallback, PreTrainedModel, Seq2SeqTrainer
from transformers.trainer_utils import EvalLoopOutput

from ..data.batching import TokenBudgetBatches
from ..models.modeling_vanilla import IGNORED
from ..private_names import require_private_names
from ..run_directory import STATE, checkpoint_of
from .saving import explained, keep_newest, move_files, publish, seal, unfinished

require_private_names(__name__)

Validate = Callable[[PreTrainedModel], Mapping[str, Any]]


class TrainingDivergedError(ArithmeticError):
    """The loss is no longer a number."""


@contextmanager
def without_autocast(model: PreTrainedModel) -> Iterator[None]:
    """
    Validate in the type of the weights, as the model will be used: autocast to bfloat16 may make it much worse.

    For mixed precision, accelerate gives the model a `forward` of its own, around that of its class.
    """
    forward = vars(model).get("forward")
    is_wrapped = hasattr(forward, "__wrapped__")
    if is_wrapped:
        del model.forward
    try:
        yield
    finally:
        if is_wrapped:
            model.forward = forward


def for_training(inputs: Mapping[str, torch.Tensor], r_drop: float) -> dict[str, Any]:
    """What the model gets for the loss of a batch: no logits are wanted, and for R-Drop each pair is there twice."""
    if not r_drop:
        return {**inputs, "skip_logits": True}
    twice = {name: torch.cat((part, part)) for name, part in inputs.items()}
    return {**twice, "skip_logits": True, "r_drop": r_drop}


class VanillaTrainer(Seq2SeqTrainer):
    """
    Seq2SeqTrainer with token-budget batches, validation by translating, checkpoints that are complete or not there, the
    speed in target tokens, and an error for a loss that is not finite.

    Args:
        train_batches: The batches of an epoch of `train_dataset`.
        eval_batches: The same for `eval_dataset`.
        validate: Translates with the model and returns scores, which are logged next to the validation loss.
        r_drop: If not 0, each batch is read twice, with different dropout, and this is the weight of the distance
            between what is predicted (Liang et al., 2021).
    """

    def __init__(
        self,
        *args: Any,
        train_batches: TokenBudgetBatches,
        eval_batches: TokenBudgetBatches,
        validate: Validate,
        r_drop: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.train_batches = train_batches
        self.eval_batches = eval_batches
        self.validate = validate
        self.r_drop = r_drop
        self.target_tokens: torch.Tensor | int = 0
        self.last_log = time.perf_counter()
        self.run = Path(self.args.output_dir)
        self.is_saving = False
        # Trainer would delete old checkpoints file by file, and with a limit of 1 even the last one at the end.
        self.save_total_limit, self.args.save_total_limit = self.args.save_total_limit, None

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.train_dataset, self.train_batches)

    def get_eval_dataloader(self, eval_dataset: str | Dataset[Any] | None = None) -> DataLoader[Any]:
        """With a random generator of its own, so that validations do not change the training's random numbers."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        return self._loader(dataset, self.eval_batches, generator=torch.Generator())

    def _loader(self, dataset: Any, batches: TokenBudgetBatches, **options: Any) -> DataLoader[Any]:
        """Workers persist for training only: every validation has a loader of its own, whose workers end with it."""
        loader = DataLoader(
            dataset,
            batch_sampler=batches,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
            persistent_workers=self.args.dataloader_persistent_workers and batches is self.train_batches,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
            **options,
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
        self.losses_and_labels = [(0.0, 0)]
        with without_autocast(self.model):
            output = super().evaluation_loop(dataloader, description, True, ignore_keys, metric_key_prefix)
            scores = self.validate(self.model)
        losses, labels = (sum(part) for part in zip(*gather_object(self.losses_and_labels), strict=True))
        output.metrics[f"{metric_key_prefix}_loss"] = losses / labels  # Trainer's is a mean over batches
        output.metrics.update({f"{metric_key_prefix}_{name}": score for name, score in scores.items()})
        self.last_log += time.perf_counter() - started  # not counted in the training's tokens per second
        return output

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The loss of a batch, noted with the number of its labels: Trainer takes the mean over batches of any size."""
        with torch.no_grad():
            loss = model(**inputs, skip_logits=True).loss
        labels = int((inputs["labels"] != IGNORED).sum())
        self.losses_and_labels.append((float(loss) * labels, labels))
        return loss, None, None

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        self.target_tokens = self.target_tokens + (inputs["labels"] != IGNORED).sum()  # stays on the device
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if self.r_drop and num_items_in_batch is not None:
            num_items_in_batch = 2 * num_items_in_batch
        return super().compute_loss(model, for_training(inputs, self.r_drop), return_outputs, num_items_in_batch)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save into a folder aside, then replace the files of the run directory by the complete ones."""
        if output_dir is not None:
            return super().save_model(output_dir, _internal_call)
        aside = unfinished(self.run) / "model"
        with explained("the model", aside, self.run):
            super().save_model(str(aside), _internal_call)
            if self.args.should_save:
                move_files(aside, self.run)
        return None

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Under FSDP2, save what one process would: the usual class name, and tied weights once."""
        sharded, shared = type(self.model), self.model.all_tied_weights_keys
        if issubclass(sharded, FSDPModule):
            usual = sharded.__mro__[2]
            sharded.__module__, sharded.__name__ = usual.__module__, usual.__name__
            state_dict = {name: weight for name, weight in (state_dict or {}).items() if name not in shared}
        super()._save(output_dir, state_dict)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save into a folder aside, and give it the name of a checkpoint when it is complete."""
        step = self.state.global_step
        aside, checkpoint = (checkpoint_of(folder, step) for folder in (unfinished(self.run), self.run))
        with explained(f"the checkpoint of step {step}", aside, self.run):
            self.is_saving = True
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self.is_saving = False
            best = self.state.best_global_step
            self.state.best_model_checkpoint = str(checkpoint_of(self.run, best)) if best else None
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self.state.save_to_json(str(aside / STATE))
                seal(aside, step)
                publish(aside, checkpoint)
                best_checkpoint = Path(self.state.best_model_checkpoint or checkpoint)
                keep_newest(self.run, self.save_total_limit, {checkpoint, best_checkpoint})
        self.accelerator.wait_for_everyone()

    def _run_epoch(self, *args: Any, epoch: int, **kwargs: Any) -> None:
        """
        Trainer's, with two fixes for resuming: a training that is complete takes no further step, and on several
        processes the sampler gets to know the epoch.
        """
        early_stops = [
            callback for callback in self.callback_handler.callbacks if isinstance(callback, EarlyStoppingCallback)
        ]
        is_stopped_early = any(
            stop.early_stopping_patience_counter >= stop.early_stopping_patience for stop in early_stops
        )
        if is_stopped_early or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            self.train_batches.set_epoch(epoch)
            super()._run_epoch(*args, epoch=epoch, **kwargs)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Trainer's, without a warning for tied weights, which are saved once and not missing."""
        shared = self.model.all_tied_weights_keys
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in shared]
        super()._issue_warnings_after_load(load_result)

    def _get_output_dir(self, trial: Any) -> str:
        return str(unfinished(self.run)) if self.is_saving else super()._get_output_dir(trial)

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
