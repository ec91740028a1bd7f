"""
The keys of transformers that a recipe may set, and for the others what decides instead.

A key that would have no effect is an error, because whoever sets it expects one. A key that stands in no table here,
such as a new option of a newer transformers, is an error too, until somebody has tested that it works.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from transformers import PreTrainedConfig, Seq2SeqTrainingArguments
from transformers import __version__ as transformers_version

DEFAULT_ARGUMENTS: dict[str, Any] = {
    # 5.3
    "adam_beta1": 0.9,
    "adam_beta2": 0.98,
    "adam_epsilon": 1e-9,
    "lr_scheduler_type": "inverse_sqrt",
    "warmup_steps": 4000.0,
    # ours
    "max_grad_norm": 0.0,
    "eval_strategy": "steps",
    "eval_steps": 500,
    "save_strategy": "steps",
    "save_steps": 500,
    "logging_steps": 50,
    "logging_nan_inf_filter": False,
    "disable_tqdm": True,
    "remove_unused_columns": False,
    "restore_callback_states_from_checkpoint": True,
    "ddp_find_unused_parameters": False,
}

WORKING_ARGUMENTS = frozenset(
    (
        # the loop of Trainer
        *("num_train_epochs", "max_steps", "gradient_accumulation_steps", "average_tokens_across_devices"),
        *("seed", "full_determinism", "max_grad_norm", "neftune_noise_alpha", "torch_empty_cache_steps"),
        *("activation_checkpointing", "activation_checkpointing_kwargs"),
        *("gradient_checkpointing", "gradient_checkpointing_kwargs"),  # their older names
        # its optimizer and schedule
        *("optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"),
        *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
        # its validations, checkpoints and logs
        *("eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "metric_for_best_model", "greater_is_better"),
        *("save_strategy", "save_steps", "save_total_limit", "load_best_model_at_end"),
        *("logging_strategy", "logging_steps", "logging_first_step", "include_num_input_tokens_seen"),
        *("skip_memory_metrics", "log_level", "log_level_replica", "log_on_each_node"),
        *("report_to", "run_name", "project", "hub_private_repo"),
        *("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        # the loader of VanillaTrainer
        *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers"),
        *("dataloader_prefetch_factor", "dataloader_multiprocessing_context"),
        # accelerate, PyTorch and the device
        *("use_cpu", "bf16", "fp16", "tf32", "torch_compile", "torch_compile_backend", "torch_compile_mode"),
        *("ddp_backend", "ddp_timeout", "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"),
        "ddp_static_graph",
    )
)
"""For each of them tests/training/test_arguments.py shows an effect."""

_BATCHES = "batches are filled up to a number of tokens: set training.max_tokens"
_SCORES = "validations compute the loss and score translations: see training.metrics and training.sample_translations"
_UPLOAD = (
    "training would publish its text, which is in the run directory too: publish the finished run by "
    "`hf-vanilla push RUN user/name`"
)
_LAUNCHER = (
    "how processes share the model is up to the launcher: accelerate launch --config_file FILE, of which "
    "`hf-vanilla recipes` lists ours"
)
_COMMAND = "the command decides: hf-vanilla train, evaluate or translate"

REFUSED_ARGUMENTS: Mapping[str, str] = {
    "output_dir": "the run directory is --output of hf-vanilla train",
    "resume_from_checkpoint": "the same command continues from the newest checkpoint by itself",
    "label_smoothing_factor": "the model smooths the labels: set model.label_smoothing",
    "debug": "transformers' search for overflows fails on this model; training stops when its loss is not finite",
    "optim_target_modules": "optimizers of chosen modules, such as GaLore and APOLLO, are not supported",
    "data_seed": "training.seed also decides the order of the data",
    **dict.fromkeys(("do_train", "do_eval", "do_predict"), _COMMAND),
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), _BATCHES),
    **dict.fromkeys(
        ("train_sampling_strategy", "length_column_name", "sortish_sampler"),
        f"batches always hold texts of similar length; {_BATCHES}",
    ),
    "generation_max_length": "set generation.max_length",
    "generation_num_beams": "set generation.num_beams",
    "generation_config": "set the keys of section `generation`",
    **dict.fromkeys(
        (
            *("predict_with_generate", "prediction_loss_only", "include_for_metrics", "batch_eval_metrics"),
            *("eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps"),
        ),
        _SCORES,
    ),
    **dict.fromkeys(
        ("hub_token", "hub_model_id", "hub_strategy", "hub_revision", "hub_always_push"), f"not used, as {_UPLOAD}"
    ),
    **dict.fromkeys(("fsdp", "fsdp_config", "deepspeed", "parallelism_config", "local_rank"), _LAUNCHER),
    **dict.fromkeys(("remove_unused_columns", "label_names"), "batches hold exactly what the model reads"),
}

ONLY_ARGUMENTS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "push_to_hub": ((False,), _UPLOAD),
    "save_only_model": ((False,), "would leave nothing to go on from; training.save_total_limit saves space"),
    "save_on_each_node": ((False,), "there is one run directory, which all machines must see"),
    "enable_jit_checkpoint": ((False,), "training already saves a checkpoint at SIGTERM"),
    "ignore_data_skip": ((False,), "training would not continue exactly where it was stopped"),
    "restore_callback_states_from_checkpoint": ((True,), "early stopping would count from zero again"),
    "logging_nan_inf_filter": ((False,), "it would hide a loss that is not finite, at which training stops"),
    "disable_tqdm": ((True,), "progress is printed line by line, see training.logging_steps"),
    "auto_find_batch_size": ((False,), "lower training.max_tokens if memory runs out"),
    **dict.fromkeys(
        ("bf16_full_eval", "fp16_full_eval"), ((False,), "validations use the weights in the type they are saved in")
    ),
    "use_cache": ((False,), "training does not use cached keys and values; set generation.use_cache"),
    "use_liger_kernel": ((False,), "Liger has no kernels for this model"),
    "liger_kernel_config": ((), "Liger has no kernels for this model"),
    "dataloader_drop_last": ((False,), "there are no incomplete batches, and every epoch has all pairs"),
    "dataloader_in_order": ((True,), "training could not be repeated exactly with batches in another order"),
    "accelerator_config": (
        tuple({"non_blocking": value} for value in (True, False)),
        f"batches are shared among processes by hf_vanilla: only non_blocking may be set; {_LAUNCHER}",
    ),
}
"""The only values that may be set, apart from null: any other would have no effect or do harm."""

_TOKENIZER = "follows from the tokenizer"

REFUSED_MODEL: Mapping[str, str] = {
    "vocab_size": "follows from the tokenizer: set tokenizer.vocab_size",
    **dict.fromkeys(("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"), _TOKENIZER),
    "is_encoder_decoder": "the model always has an encoder and a decoder",
    "use_cache": "set generation.use_cache",
} | {
    field.name: "is no part of the architecture"
    for field in fields(PreTrainedConfig)
    if field.name != "is_encoder_decoder"
}

REFUSED_GENERATION: Mapping[str, str] = {
    **dict.fromkeys(("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"), _TOKENIZER),
    "transformers_version": "is written by transformers itself",
}

ONLY_GENERATION: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "num_return_sequences": ((1,), "each source has one translation"),
    **dict.fromkeys(
        ("return_dict_in_generate", "output_attentions", "output_hidden_states", "output_scores", "output_logits"),
        ((False,), "translations are texts; call generate() of the finished model with it"),
    ),
}

NEEDED: Mapping[str, tuple[str, ...]] = {
    "activation_checkpointing_kwargs": ("activation_checkpointing", "gradient_checkpointing"),
    "gradient_checkpointing_kwargs": ("gradient_checkpointing", "activation_checkpointing"),
    **dict.fromkeys(
        ("dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_multiprocessing_context"),
        ("dataloader_num_workers",),
    ),
    **dict.fromkeys(
        ("run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "hub_private_repo"),
        ("report_to",),
    ),
}
"""Options that have an effect only if one of these is set as well."""

AT_LEAST: Mapping[str, int] = {
    **dict.fromkeys(
        ("gradient_accumulation_steps", "save_total_limit", "dataloader_prefetch_factor", "ddp_timeout"), 1
    ),
    "ddp_bucket_cap_mb": 1,
    **dict.fromkeys(("warmup_steps", "eval_delay", "dataloader_num_workers", "max_grad_norm", "weight_decay"), 0),
    **dict.fromkeys(("learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "neftune_noise_alpha", "seed"), 0),
}
MORE_THAN: Mapping[str, int] = dict.fromkeys(("num_train_epochs", "eval_steps", "save_steps", "logging_steps"), 0)
LESS_THAN: Mapping[str, int] = {"adam_beta1": 1, "adam_beta2": 1, "seed": 2**32}

WITHOUT_WARM_UP = ("constant", "reduce_lr_on_plateau", "greedy")
"""Schedules that start at the full learning rate and ignore training.warmup_steps."""


def refused_arguments(arguments: Mapping[str, Any]) -> Iterator[str]:
    known = {field.name for field in fields(Seq2SeqTrainingArguments)}
    yield from _refused("training", arguments, REFUSED_ARGUMENTS, ONLY_ARGUMENTS)
    for key in arguments:
        if key in known - WORKING_ARGUMENTS - REFUSED_ARGUMENTS.keys() - ONLY_ARGUMENTS.keys():
            yield f"training.{key}: hf_vanilla does not know this option of transformers {transformers_version}"


def refused_in_model(model: Mapping[str, Any]) -> Iterator[str]:
    yield from _refused("model", model, REFUSED_MODEL, {})


def refused_in_generation(generation: Mapping[str, Any]) -> Iterator[str]:
    yield from _refused("generation", generation, REFUSED_GENERATION, ONLY_GENERATION)


def _refused(
    section: str,
    values: Mapping[str, Any],
    refused: Mapping[str, str],
    only: Mapping[str, tuple[tuple[Any, ...], str]],
) -> Iterator[str]:
    for key, value in values.items():
        if key in refused:
            yield f"{section}.{key}: cannot be set: {refused[key]}"
        elif key in only and value is not None and value not in only[key][0]:
            yield f"{section}.{key}: cannot be {value!r}: {only[key][1]}"


def wrong_numbers(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Numbers that PyTorch or Trainer would refuse only after the data have been prepared."""
    for key, value in arguments.items():
        if not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            yield f"training.{key}: {value} must be finite"
        elif value < AT_LEAST.get(key, value):
            yield f"training.{key}: {value} must be at least {AT_LEAST[key]}"
        elif key in MORE_THAN and value <= MORE_THAN[key]:
            yield f"training.{key}: {value} must be more than {MORE_THAN[key]}"
        elif key in LESS_THAN and value >= LESS_THAN[key]:
            yield f"training.{key}: {value} must be less than {LESS_THAN[key]}"
        elif key == "max_steps" and value == 0:
            yield "training.max_steps: 0 must be at least 1, or -1 to train for training.num_train_epochs"


def contradictions(arguments: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    """
    Combinations of keys under `training` of which one has no effect or fails later, perhaps after the whole training.

    Args:
        arguments: The options of Seq2SeqTrainingArguments that the recipe sets.
        ours: The keys that only hf_vanilla has, defaults included.
    """
    chosen = DEFAULT_ARGUMENTS | dict(arguments) | dict(ours)
    yield from _without_validation(chosen)
    yield from _without_checkpoints(chosen)
    for key, needed in NEEDED.items():
        if chosen.get(key) not in (None, False) and not any(_is_set(chosen.get(other)) for other in needed):
            yield f"training.{key}: {chosen[key]!r} has no effect: set training.{needed[0]}, or take it out"
    if "num_train_epochs" in arguments and chosen.get("max_steps", -1) > 0:
        yield (
            f"training.num_train_epochs: {chosen['num_train_epochs']:g} has no effect beside training.max_steps "
            f"({chosen['max_steps']}): set training.max_steps to -1, or take it out"
        )
    if arguments.get("warmup_steps") and chosen["lr_scheduler_type"] in WITHOUT_WARM_UP:
        yield (
            f"training.warmup_steps: {chosen['warmup_steps']:g} has no effect: training.lr_scheduler_type "
            f"{chosen['lr_scheduler_type']!r} has no warm-up"
        )


def _is_set(value: Any) -> bool:
    return value not in (None, False, 0, "none", ["none"], [])


def _without_validation(chosen: Mapping[str, Any]) -> Iterator[str]:
    best = chosen["average_checkpoints"] > 1 and chosen["average"] == "best"
    if chosen["eval_strategy"] == "no":
        for key, is_on in (
            ("early_stopping_patience", chosen["early_stopping_patience"] is not None),
            ("load_best_model_at_end", chosen.get("load_best_model_at_end")),
            ("save_strategy", chosen["save_strategy"] == "best"),
            ("average", best),
        ):
            if is_on:
                yield f"training.{key}: {chosen[key]!r} needs validations: set training.eval_strategy to steps or epoch"
    elif best and chosen["save_strategy"] not in ("best", chosen["eval_strategy"]):
        yield (
            "training.average: 'best' needs checkpoints that were validated: training.save_strategy "
            f"({chosen['save_strategy']!r}) must be what training.eval_strategy is ({chosen['eval_strategy']!r})"
        )


def _without_checkpoints(chosen: Mapping[str, Any]) -> Iterator[str]:
    number, limit = chosen["average_checkpoints"], chosen.get("save_total_limit")
    if number > 1:
        if chosen["save_strategy"] == "no":
            yield f"training.average_checkpoints: {number} needs checkpoints, and training.save_strategy is 'no'"
        if limit is not None and limit < number:
            yield f"training.save_total_limit: {limit} is fewer than training.average_checkpoints ({number})"
        if chosen.get("load_best_model_at_end"):
            yield (
                "training.load_best_model_at_end: True has no effect: the model becomes the average of "
                f"{number} checkpoints (training.average_checkpoints)"
            )
    elif chosen.get("load_best_model_at_end") and chosen["save_strategy"] == "no":
        yield "training.load_best_model_at_end: True needs checkpoints, and training.save_strategy is 'no'"
