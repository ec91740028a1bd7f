"""Makes Trainer's arguments from a recipe, with our defaults, and refuses what cannot work on this machine."""

import math
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from transformers import GenerationConfig, Seq2SeqTrainer, Seq2SeqTrainingArguments, get_scheduler
from transformers.integrations import get_available_reporting_integrations

from ..models.configuration_vanilla import VanillaConfig
from ..models.modeling_vanilla import VanillaForConditionalGeneration
from ..precision import bfloat16_is_fast
from . import yaml12
from .options import DEFAULT_ARGUMENTS, WITHOUT_WARM_UP
from .recipe import BY_A_METRIC, Recipe, RecipeError

"""Schedules that lower the learning rate when validations stop getting better."""

UNKNOWN_STEPS = 10_000
"""Stands for the number of steps where the data decide it, when a schedule is made on trial."""


def training_arguments(recipe: Recipe, run: Path) -> Seq2SeqTrainingArguments:
    """The arguments for this process of a training. Whatever is wrong with them is raised before data are prepared."""
    arguments = arguments_here(recipe, run)
    if arguments.n_gpu > 1:
        launch = f"accelerate launch --num_processes {arguments.n_gpu} -m hf_vanilla"
        raise RecipeError(
            f"this process sees {arguments.n_gpu} GPUs, and Trainer would split each batch among them (DataParallel), "
            f"which changes the loss. To use them all: {launch} {_command()} (each has training.max_tokens). "
            f"To use one: CUDA_VISIBLE_DEVICES=0 hf-vanilla {_command()}"
        )
    return arguments


def arguments_here(recipe: Recipe, run: Path) -> Seq2SeqTrainingArguments:
    """The arguments for this process, which may see several GPUs (`check` only needs one of them)."""
    chosen = DEFAULT_ARGUMENTS | dict(recipe.arguments)
    chosen |= {"metric_for_best_model": recipe.metric, "greater_is_better": recipe.greater_is_better}
    on_cpu = not torch.accelerator.is_available() or parse_flag_from_env("ACCELERATE_USE_CPU")
    chosen["use_cpu"] = chosen.get("use_cpu") or on_cpu
    chosen.setdefault("bf16", not chosen.get("fp16") and bfloat16_is_fast(chosen["use_cpu"]))
    if "learning_rate" not in chosen:
        chosen["learning_rate"] = peak_of_equation_3(recipe, chosen)
    if chosen["use_cpu"] and "ddp_timeout" in chosen:
        # TrainingArguments does not pass the timeout on to processes on CPUs: they would wait half an hour for one
        # that hangs.
        timeout = timedelta(seconds=chosen["ddp_timeout"])
        PartialState(cpu=True, timeout=timeout, backend=chosen.get("ddp_backend"))
    with _as_recipe_error():
        if chosen["lr_scheduler_type"] in BY_A_METRIC:
            best = {"mode": "max" if recipe.greater_is_better else "min"}
            chosen["lr_scheduler_kwargs"] = best | dict(chosen.get("lr_scheduler_kwargs") or {})
        arguments = Seq2SeqTrainingArguments(output_dir=str(run), **chosen)
        _check_device(arguments)
        _check_names(arguments)
        _try_optimizer(arguments)
    if error := _error_of_search(yaml12.dump(dict(recipe.generation)), recipe.tokenizer.vocab_size):
        raise RecipeError(f"generation: {error}")
    return arguments


def peak_of_equation_3(recipe: Recipe, chosen: dict[str, Any]) -> float:
    """The learning rate of section 5.3 at the end of the warm-up: d_model^-0.5 warmup_steps^-0.5."""
    warm_up, steps = chosen["warmup_steps"], chosen.get("max_steps", -1)
    if chosen["lr_scheduler_type"] in WITHOUT_WARM_UP or not warm_up:
        raise RecipeError(
            "training.learning_rate: is missing. Its default is the paper's at the end of the warm-up, and there is "
            f"none (training.lr_scheduler_type {chosen['lr_scheduler_type']!r}, training.warmup_steps {warm_up:g})"
        )
    if warm_up < 1 and steps < 1:
        raise RecipeError(
            "training.learning_rate: is missing. Its default follows from the number of warm-up steps, and "
            f"training.warmup_steps ({warm_up:g}) is a share of a number of steps that is not known yet: set it, or "
            "training.max_steps, or training.warmup_steps to 1 or more"
        )
    if warm_up < 1:
        warm_up = math.ceil(warm_up * steps)
    return float((VanillaConfig(**recipe.model).d_model * int(warm_up)) ** -0.5)


def _command() -> str:
    """The command line if there is one (training may also be started from Python)."""
    given = sys.argv[1:]
    return shlex.join(given) if given[:1] == ["train"] else "train RECIPE ..."


def _check_device(arguments: Seq2SeqTrainingArguments) -> None:
    if arguments.fp16 and arguments.use_cpu:
        raise RecipeError("training.fp16: needs a GPU; on CPUs training.bf16 saves memory")


def _check_names(arguments: Seq2SeqTrainingArguments) -> None:
    try:
        arguments.get_process_log_level()
    except KeyError as error:
        known = "debug, info, warning, error, critical, passive"
        raise RecipeError(f"training.log_level, training.log_level_replica: {error} is none of {known}") from None
    available = get_available_reporting_integrations()
    for name in arguments.report_to:
        if name not in available:
            installed = ", ".join(available) or "none"
            raise RecipeError(f"training.report_to: {name!r} is unknown or not installed (installed: {installed})")


def _try_optimizer(arguments: Seq2SeqTrainingArguments) -> None:
    """Make an optimizer and its schedule for one weight, as they check their options: Trainer makes them much later."""
    kind: Any
    kind, options = Seq2SeqTrainer.get_optimizer_cls_and_kwargs(arguments)
    weights = [torch.nn.Parameter(torch.zeros(1))]
    optimizer: torch.optim.Optimizer = torch.optim.SGD(weights, arguments.learning_rate)
    if kind.__module__.startswith("torch.optim"):
        optimizer = kind(weights, **options)
    steps = arguments.max_steps if arguments.max_steps > 0 else UNKNOWN_STEPS
    get_scheduler(
        arguments.lr_scheduler_type,
        optimizer,
        num_warmup_steps=arguments.get_warmup_steps(steps),
        num_training_steps=steps,
        scheduler_specific_kwargs=dict(arguments.lr_scheduler_kwargs or {}),
    )


@lru_cache
def _error_of_search(generation: str, vocab_size: int) -> str | None:
    """
    The error that `generate()` raises with these options, found with a tiny model.

    Validations translate greedily, so that it would show only after the training.
    """
    options: dict[str, Any] = yaml12.load(generation)
    for key in ("max_length", "max_new_tokens", "min_length", "min_new_tokens"):
        if isinstance(options.get(key), int):
            options[key] = min(options[key], 8)  # to take a few steps only
    sizes = {"d_model": 2, "num_heads": 1, "d_ff": 1, "encoder_layers": 1, "decoder_layers": 1}
    with torch.random.fork_rng(devices=[]):
        model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=max(vocab_size, 4), **sizes)).eval()
        ids = {name: getattr(model.config, name) for name in ("bos_token_id", "pad_token_id", "eos_token_id")}
        ids["decoder_start_token_id"] = model.config.decoder_start_token_id
        try:
            with warnings.catch_warnings(action="ignore"):
                model.generate(torch.tensor([[3, 2]]), generation_config=GenerationConfig(**ids | options))
        except Exception as error:  # generate() raises all kinds
            return f"{type(error).__name__}: {error}"
    return None


@contextmanager
def _as_recipe_error() -> Iterator[None]:
    try:
        yield
    except RecipeError:
        raise
    except (ValueError, TypeError, ImportError, RuntimeError, OSError) as error:
        raise RecipeError(f"training: {error}") from None
