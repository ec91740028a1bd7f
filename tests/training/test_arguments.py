"""Every option of Trainer works as it says, or is refused with what to set instead; and early, whatever is wrong."""

import gc
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedConfig, Seq2SeqTrainingArguments, set_seed
from transformers.integrations import integration_utils
from transformers.utils import logging

from hf_vanilla import VanillaConfig
from hf_vanilla.precision import bfloat16_is_fast
from hf_vanilla.training import arguments as arguments_module
from hf_vanilla.training.arguments import arguments_here, training_arguments
from hf_vanilla.training.options import (
    ONLY_ARGUMENTS,
    ONLY_GENERATION,
    REFUSED_ARGUMENTS,
    REFUSED_GENERATION,
    REFUSED_MODEL,
    WORKING_ARGUMENTS,
)
from hf_vanilla.training.recipe import RecipeError, load_recipe
from hf_vanilla.training.run import Prepared, make_trainer, new_model, prepare
from hf_vanilla.training.stopping import StopOnSignal
from hf_vanilla.training.trainer import VanillaTrainer, for_training

CONFIGS = Path(__file__).parents[2] / "configs"
TINY = [
    *("data.train.size=12", "data.validation.size=3", "tokenizer.kind=character"),
    *("data.max_source_length=90", "data.max_target_length=90", "training.max_tokens=90", "training.bf16=false"),
    *("model.d_model=8", "model.d_ff=8", "model.num_heads=2", "model.encoder_layers=1", "model.decoder_layers=1"),
    *("training.max_steps=4", "training.warmup_steps=2", "training.logging_steps=1", "training.metrics=[]"),
    *("training.eval_strategy=no", "training.save_strategy=no", "training.metric_for_best_model=loss"),
]
EVALUATES = ["training.eval_strategy=steps", "training.eval_steps=2"]
SAVES = [*EVALUATES, "training.save_strategy=steps", "training.save_steps=1"]
WORKERS = ["training.dataloader_num_workers=1"]
Make = Callable[..., VanillaTrainer]


@pytest.fixture(autouse=True)
def _no_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate collects garbage before each training, which takes longer than such a training."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)


@pytest.fixture(autouse=True)
def _own_log_level() -> Iterator[None]:
    """Each trainer sets it for the whole process."""
    before = logging.get_verbosity()
    yield
    logging.set_verbosity(before)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(load_recipe(CONFIGS / "quickstart.yaml", TINY), tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def make(prepared: Prepared, tmp_path: Path) -> Make:
    """`make(*overrides)`: the trainer of a tiny recipe, as `hf-vanilla train` makes it."""

    def trainer(*overrides: str) -> VanillaTrainer:
        recipe = load_recipe(CONFIGS / "quickstart.yaml", [*TINY, *overrides])
        arguments = training_arguments(recipe, tmp_path / str(len(list(tmp_path.iterdir()))))
        set_seed(arguments.seed)
        model = new_model(recipe, prepared.tokenizer)
        translate, score = (lambda model, tokenizer, sources, _: [""] * len(sources)), (lambda found, references: {})
        return make_trainer(recipe, arguments, prepared, model, translate, score, StopOnSignal())

    return trainer


def group(trainer: VanillaTrainer) -> dict[str, Any]:
    """The options of the optimizer, and which it is."""
    optimizer = trainer.create_optimizer()
    options = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    return options | {"optimizer": type(optimizer).__name__}


def rates(trainer: VanillaTrainer) -> list[float]:
    """The learning rate of each step."""
    trainer.create_optimizer_and_scheduler(num_training_steps=8)
    found = []
    for _ in range(8):
        found.append(trainer.lr_scheduler.get_last_lr()[0])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    return found


def loader(trainer: VanillaTrainer, name: str) -> Any:
    return str(getattr(trainer.get_train_dataloader(), name))


def accelerated(trainer: VanillaTrainer, name: str) -> Any:
    """What accelerate makes of an option for several processes."""
    return trainer.accelerator.ddp_handler.to_kwargs().get(name)


def trained(trainer: VanillaTrainer) -> VanillaTrainer:
    trainer.train()
    return trainer


def logs(trainer: VanillaTrainer, name: str) -> list[tuple[int, float]]:
    """The logged values of a name, by step."""
    history = trained(trainer).state.log_history
    return [(entry["step"], entry[name]) for entry in history if name in entry]


def steps_with(trainer: VanillaTrainer, name: str) -> list[int]:
    return [step for step, _ in logs(trainer, name)]


def checkpoints(trainer: VanillaTrainer) -> list[str]:
    return sorted(path.name for path in trained(trainer).run.glob("checkpoint-*"))


def weights(trainer: VanillaTrainer) -> float:
    return float(sum(weight.detach().abs().sum() for weight in trainer.model.parameters()))


def best_weights(trainer: VanillaTrainer) -> float:
    """Of a training that becomes worse with every validation."""
    validations = iter(range(10))
    usual = trainer.evaluate
    trainer.evaluate = lambda **options: usual(**options) | {"eval_loss": next(validations)}  # type: ignore[method-assign]
    return weights(trained(trainer))


def cleared_caches(trainer: VanillaTrainer) -> int:
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.trainer.clear_device_cache", lambda: calls.append(1))
        trainer.train()
    return len(calls)


def recomputed(trainer: VanillaTrainer) -> list[Any]:
    """With which options layers are computed again in the backward pass."""
    found: list[Any] = []
    usual = torch.utils.checkpoint.checkpoint
    with pytest.MonkeyPatch.context() as patch:
        for module in ("transformers.modeling_utils.checkpoint", "torch.utils.checkpoint.checkpoint"):
            patch.setattr(module, lambda *args, **options: found.append(options) or usual(*args, **options))
        trainer.train()
    return found


def label_counts(trainer: VanillaTrainer) -> int:
    """How many labels a process divides its loss by, of two that have as many each."""
    trainer.args.distributed_state.num_processes = 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.accelerator, "gather", lambda count: torch.stack([count, count]))
        batch = {"labels": torch.zeros(1, 3, dtype=torch.long)}
        counted = int(trainer._get_num_items_in_batch([batch], torch.device("cpu")))
    trainer.args.distributed_state.num_processes = 1
    return counted


def log_level(arguments: Seq2SeqTrainingArguments) -> int:
    return int(arguments.get_process_log_level())


def on_second_machine(trainer: VanillaTrainer) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Seq2SeqTrainingArguments, "process_index", 1)
        return log_level(trainer.args)


def on_second_process(trainer: VanillaTrainer) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Seq2SeqTrainingArguments, "local_process_index", 1)
        return log_level(trainer.args)


CHECKPOINTING = ["training.gradient_checkpointing=true"]
PLATEAU = ["training.lr_scheduler_type=reduce_lr_on_plateau", "training.warmup_steps=0", *EVALUATES]
CHANGES: dict[str, tuple[list[str], str, Callable[[VanillaTrainer], Any]]] = {
    # option: what is set beside it, its value, and where it shows
    "num_train_epochs": (["training.max_steps=-1"], "1", lambda t: trained(t).state.max_steps),
    "max_steps": ([], "3", lambda t: trained(t).state.global_step),
    "seed": ([], "7", lambda t: (weights(t), list(t.train_batches))),
    "full_determinism": ([], "true", lambda _: torch.are_deterministic_algorithms_enabled()),
    "gradient_accumulation_steps": ([], "2", lambda t: (t.train_batches.per_step, logs(t, "epoch"))),
    "average_tokens_across_devices": ([], "false", label_counts),
    "learning_rate": ([], "0.5", lambda t: group(t)["lr"]),
    "lr_scheduler_type": ([], "linear", rates),
    "lr_scheduler_kwargs": (["training.lr_scheduler_type=cosine"], "{num_cycles: 3}", rates),
    "warmup_steps": ([], "5", rates),
    "max_grad_norm": ([], "0.001", lambda t: weights(trained(t))),
    "neftune_noise_alpha": ([], "5", lambda t: logs(t, "loss")),
    "optim": ([], "adafactor", lambda t: group(t)["optimizer"]),
    "optim_args": (["training.optim=sgd"], "momentum=0.5", lambda t: group(t)["momentum"]),
    "weight_decay": ([], "0.1", lambda t: group(t)["weight_decay"]),
    "adam_beta1": ([], "0.5", lambda t: group(t)["betas"]),
    "adam_beta2": ([], "0.5", lambda t: group(t)["betas"]),
    "adam_epsilon": ([], "0.5", lambda t: group(t)["eps"]),
    "bf16": ([], "true", lambda t: t.accelerator.mixed_precision),
    "torch_compile": ([], "true", lambda t: t.accelerator.state.dynamo_plugin.backend),
    "torch_compile_backend": ([], "eager", lambda t: t.accelerator.state.dynamo_plugin.backend),
    "torch_compile_mode": ([], "reduce-overhead", lambda t: t.accelerator.state.dynamo_plugin.mode),
    "torch_empty_cache_steps": ([], "2", cleared_caches),
    "activation_checkpointing": ([], "true", lambda t: len(recomputed(t))),
    "activation_checkpointing_kwargs": (CHECKPOINTING, "{preserve_rng_state: false}", recomputed),
    "gradient_checkpointing": ([], "true", lambda t: len(recomputed(t))),
    "gradient_checkpointing_kwargs": (CHECKPOINTING, "{preserve_rng_state: false}", recomputed),
    "eval_strategy": ([], "epoch", lambda t: steps_with(t, "eval_loss")),
    "eval_steps": (EVALUATES, "1", lambda t: steps_with(t, "eval_loss")),
    "eval_delay": (EVALUATES, "3", lambda t: steps_with(t, "eval_loss")),
    "eval_on_start": (EVALUATES, "true", lambda t: steps_with(t, "eval_loss")),
    "metric_for_best_model": (EVALUATES, "runtime", lambda t: trained(t).state.best_metric),
    "greater_is_better": (EVALUATES, "true", lambda t: trained(t).state.best_metric),
    "save_strategy": (EVALUATES, "epoch", checkpoints),
    "save_steps": (SAVES, "2", checkpoints),
    "save_total_limit": (SAVES, "2", checkpoints),
    "load_best_model_at_end": (["training.save_steps=2", *SAVES[:3]], "true", best_weights),
    "logging_strategy": ([], "no", lambda t: steps_with(t, "loss")),
    "logging_steps": ([], "2", lambda t: steps_with(t, "loss")),
    "logging_first_step": (["training.logging_steps=2"], "true", lambda t: steps_with(t, "loss")),
    "include_num_input_tokens_seen": ([], "non_padding", lambda t: trained(t).state.num_input_tokens_seen),
    "skip_memory_metrics": ([], "false", lambda t: len(logs(t, "train_mem_cpu_peaked_delta"))),
    "log_level": ([], "error", lambda t: log_level(t.args)),
    "log_level_replica": ([], "debug", on_second_process),
    "log_on_each_node": (["training.log_level=error"], "false", on_second_machine),
    "dataloader_num_workers": ([], "1", lambda t: loader(t, "num_workers")),
    "dataloader_persistent_workers": (WORKERS, "true", lambda t: loader(t, "persistent_workers")),
    "dataloader_prefetch_factor": (WORKERS, "5", lambda t: loader(t, "prefetch_factor")),
    "dataloader_multiprocessing_context": (WORKERS, "spawn", lambda t: loader(t, "multiprocessing_context")),
    "accelerator_config": ([], "{non_blocking: true}", lambda t: loader(t, "_non_blocking")),
    "ddp_find_unused_parameters": ([], "true", lambda t: accelerated(t, "find_unused_parameters")),
    "ddp_bucket_cap_mb": ([], "3", lambda t: accelerated(t, "bucket_cap_mb")),
    "ddp_broadcast_buffers": ([], "false", lambda t: accelerated(t, "broadcast_buffers")),
    "ddp_static_graph": ([], "true", lambda t: accelerated(t, "static_graph")),
}
TRACKIO = {
    "run_name": ("name", "a name"),
    "project": ("project", "a project"),
    "trackio_space_id": ("space_id", "me/space"),
    "trackio_bucket_id": ("bucket_id", "me/bucket"),
    "trackio_static_space_id": ("new_space_id", "me/static"),
    "hub_private_repo": ("private", True),
}
ELSEWHERE = {"use_cpu", "fp16", "tf32", "dataloader_pin_memory", "ddp_backend", "ddp_timeout", "report_to", *TRACKIO}
"""Working options that have tests of their own below: for other devices, several processes and other programs."""


def options_there_are() -> set[str]:
    return {field.name for field in fields(Seq2SeqTrainingArguments)}


def test_every_option_of_the_installed_transformers_works_or_is_refused() -> None:
    refused = REFUSED_ARGUMENTS.keys() | ONLY_ARGUMENTS.keys()
    assert options_there_are() <= WORKING_ARGUMENTS | refused
    assert not WORKING_ARGUMENTS & refused
    assert not REFUSED_ARGUMENTS.keys() & ONLY_ARGUMENTS.keys()
    assert (CHANGES.keys() | ELSEWHERE) - {"accelerator_config"} == WORKING_ARGUMENTS


def test_an_option_that_nobody_has_looked_at_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_vanilla.training.options.WORKING_ARGUMENTS", WORKING_ARGUMENTS - {"weight_decay"})
    with pytest.raises(RecipeError, match=r"training.weight_decay: hf_vanilla does not know this option"):
        load_recipe(CONFIGS / "quickstart.yaml", ["training.weight_decay=0.1"])


@pytest.fixture
def _usual_determinism(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "ASCEND_LAUNCH_BLOCKING", "HCCL_DETERMINISTIC"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("FLASH_ATTENTION_DETERMINISTIC", "")
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.mark.usefixtures("_usual_determinism")
@pytest.mark.parametrize("option", sorted(CHANGES))
def test_an_option_that_may_be_set_changes_what_it_names(make: Make, option: str) -> None:
    if option not in options_there_are():
        pytest.skip(f"this transformers has no {option}")
    beside, value, observe = CHANGES[option]
    assert observe(make(*beside)) != observe(make(*beside, f"training.{option}={value}"))


@pytest.mark.parametrize("option", sorted(REFUSED_ARGUMENTS.keys() | ONLY_ARGUMENTS.keys()))
def test_an_option_that_would_do_nothing_is_refused_with_what_to_set_instead(option: str) -> None:
    default = {field.name: field.default for field in fields(Seq2SeqTrainingArguments)}[option]
    other = not default if isinstance(default, bool) else 1
    if option in ONLY_ARGUMENTS and option not in ("accelerator_config", "liger_kernel_config"):
        (usual,), advice = ONLY_ARGUMENTS[option]
        load_recipe(CONFIGS / "quickstart.yaml", [f"training.{option}={str(usual).lower()}"])
        other = not usual
    else:
        advice = (REFUSED_ARGUMENTS | {name: advice for name, (_, advice) in ONLY_ARGUMENTS.items()})[option]
    with pytest.raises(RecipeError) as error:
        load_recipe(CONFIGS / "quickstart.yaml", [f"training.{option}={str(other).lower()}"])
    assert str(error.value).startswith(f"training.{option}: cannot be ")
    assert str(error.value).endswith(advice)


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("training.per_device_train_batch_size=8", "training.max_tokens"),
        ("training.train_sampling_strategy=random", "training.max_tokens"),
        ("training.label_smoothing_factor=0", "model.label_smoothing"),
        ("training.resume_from_checkpoint=false", "the same command continues"),
        ("training.generation_num_beams=4", "generation.num_beams"),
        ("training.generation_max_length=4", "generation.max_length"),
        ("training.use_cache=true", "generation.use_cache"),
        ("training.auto_find_batch_size=true", "training.max_tokens"),
        ("model.vocab_size=300", "tokenizer.vocab_size"),
        ("model.pad_token_id=3", "follows from the tokenizer"),
        ("model.is_encoder_decoder=false", "always has an encoder and a decoder"),
        ("model.use_cache=false", "generation.use_cache"),
        ("model.dtype=bfloat16", "no part of the architecture"),
        ("generation.eos_token_id=5", "follows from the tokenizer"),
        ("generation.num_return_sequences=2", "each source has one translation"),
        ("generation.return_dict_in_generate=true", "call generate()"),
    ],
)
def test_a_refusal_names_what_decides_instead(option: str, instead: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(CONFIGS / "quickstart.yaml", [option])
    assert str(error.value).startswith(f"{option.partition('=')[0]}: cannot be ")
    assert instead in str(error.value)


def test_every_field_of_the_model_is_one_of_the_paper_or_refused() -> None:
    paper = set(VanillaConfig.__annotations__) - {"model_type", "keys_to_ignore_at_inference", "attribute_map"}
    paper -= {name for name in VanillaConfig.__annotations__ if name.startswith("base_model_")} | REFUSED_MODEL.keys()
    assert {field.name for field in fields(VanillaConfig)} == paper | REFUSED_MODEL.keys()
    assert {field.name for field in fields(PreTrainedConfig)} <= REFUSED_MODEL.keys()
    assert (REFUSED_GENERATION.keys() | ONLY_GENERATION.keys()) <= GenerationConfig().to_dict().keys()


def test_workers_of_a_validation_end_with_it(make: Make) -> None:
    trainer = make(*WORKERS, "training.dataloader_persistent_workers=true", "training.dataloader_prefetch_factor=5")
    assert trainer.get_train_dataloader().persistent_workers
    assert not trainer.get_eval_dataloader().persistent_workers
    assert trainer.get_eval_dataloader().prefetch_factor == 5


def test_a_plateau_is_looked_for_in_the_direction_of_the_metric(make: Make) -> None:
    for metric, mode in (("loss", "min"), ("bleu", "max")):
        trainer = make(*PLATEAU, f"training.metric_for_best_model={metric}")
        trainer.create_optimizer_and_scheduler(8)
        assert trainer.lr_scheduler.mode == mode
    trainer = make(*PLATEAU, "training.metric_for_best_model=bleu", "training.lr_scheduler_kwargs={mode: min}")
    trainer.create_optimizer_and_scheduler(8)
    assert trainer.lr_scheduler.mode == "min"


def test_several_gpus_are_refused_with_the_commands_to_use(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Seq2SeqTrainingArguments, "n_gpu", 8)
    monkeypatch.setattr(sys, "argv", ["hf-vanilla", "train", "a b.yaml", "training.seed=3"])
    with pytest.raises(RecipeError) as error:
        make()
    assert "accelerate launch --num_processes 8 -m hf_vanilla train 'a b.yaml' training.seed=3 (" in str(error.value)
    assert str(error.value).endswith("CUDA_VISIBLE_DEVICES=0 hf-vanilla train 'a b.yaml' training.seed=3")
    monkeypatch.setattr(sys, "argv", ["pytest", "-n", "0"])
    with pytest.raises(RecipeError, match=r"-m hf_vanilla train RECIPE \.\.\. "):
        make()
    assert arguments_here(load_recipe(CONFIGS / "quickstart.yaml"), tmp_path).max_steps == 2600  # for `check`


def test_bfloat16_is_chosen_by_the_device_that_is_used(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipe = load_recipe(CONFIGS / "quickstart.yaml", ["training.use_cpu=true"])
    for on_gpu, on_cpu in ((True, False), (False, True)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, answer=on_gpu: answer)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda answer=on_cpu: answer)
        assert bfloat16_is_fast(use_cpu=True) is on_cpu
        assert bfloat16_is_fast(use_cpu=False) is on_gpu
        assert arguments_here(recipe, tmp_path).bf16 is on_cpu
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # accelerate launch --cpu
    assert arguments_here(load_recipe(CONFIGS / "quickstart.yaml"), tmp_path).use_cpu


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize(("option", "message"), [("fp16", "training.fp16: needs a GPU"), ("tf32", "requires Ampere")])
def test_what_only_a_gpu_can_is_refused_at_once(make: Make, option: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make(f"training.{option}=true")


def test_memory_is_pinned_for_a_gpu(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = [make("training.dataloader_pin_memory=false"), make()]
    trainers[1].args.dataloader_pin_memory = True  # which transformers takes back on CPUs
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(VanillaTrainer, "accelerator", types.SimpleNamespace(prepare=lambda it: it), raising=False)
    assert [trainer.get_train_dataloader().pin_memory for trainer in trainers] == [False, True]


def test_processes_on_cpus_know_backend_and_timeout(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(arguments_module, "PartialState", lambda **options: asked.append(options))
    overrides = ["training.ddp_timeout=77", "training.ddp_backend=gloo"]
    monkeypatch.setattr(arguments_module, "Seq2SeqTrainingArguments", lambda **options: pytest.fail(str(options)))
    with pytest.raises(pytest.fail.Exception, match=r"'ddp_timeout': 77.*'ddp_backend': 'gloo'"):  # they have both, too
        arguments_here(load_recipe(CONFIGS / "quickstart.yaml", overrides), tmp_path)
    assert asked == [{"cpu": True, "timeout": timedelta(seconds=77), "backend": "gloo"}]


def test_options_of_trackers_reach_them(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match=r"training.report_to: 'trackoi' is unknown or not installed"):
        make("training.report_to=trackoi")
    reached: dict[str, Any] = {}
    current = types.SimpleNamespace(get=lambda: "me/space")
    trackio = types.ModuleType("trackio")
    vars(trackio).update(
        __version__="1.0",
        init=lambda **options: reached.update(options),
        freeze=lambda **options: reached.update(options),
        log=lambda values: None,
        finish=lambda: None,
        config=type("Config", (dict,), {"update": lambda *_, **__: None})(),
        context_vars=types.SimpleNamespace(current_space_id=current),
    )
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    monkeypatch.setattr(integration_utils, "is_trackio_available", lambda: True)
    options = [f"training.{option}={str(value).lower()}" for option, (_, value) in TRACKIO.items()]
    trained(make("training.report_to=trackio", *options))
    assert {name: reached[name] for name, _ in TRACKIO.values()} == dict(TRACKIO.values())


PAPER = [f"model.{key}={value}" for key, value in {"d_model": 512, "num_heads": 8}.items()]


@pytest.mark.parametrize(
    ("overrides", "peak"),
    [
        ([], 512**-0.5 * 4000**-0.5),
        (["warmup_steps=100"], 512**-0.5 * 100**-0.5),
        (["warmup_steps=0.1", "max_steps=5000"], 512**-0.5 * 500**-0.5),
        (["warmup_steps=100", "max_steps=-1", "lr_scheduler_type=cosine"], 512**-0.5 * 100**-0.5),
        (["warmup_steps=100", "learning_rate=0.25"], 0.25),
        (["warmup_steps=0", "learning_rate=0.25"], 0.25),
    ],
)
def test_the_learning_rate_is_that_of_equation_3_unless_it_is_set(
    recipe_without_rate: Path, tmp_path: Path, overrides: list[str], peak: float
) -> None:
    recipe = load_recipe(recipe_without_rate, [*PAPER, *(f"training.{override}" for override in overrides)])
    arguments = arguments_here(recipe, tmp_path)
    assert arguments.learning_rate == pytest.approx(peak)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["warmup_steps=0"], "there is none (training.lr_scheduler_type 'inverse_sqrt', training.warmup_steps 0)"),
        (["lr_scheduler_type=constant"], "there is none (training.lr_scheduler_type 'constant'"),
        (["lr_scheduler_type=reduce_lr_on_plateau"], "there is none"),
        (["warmup_steps=0.1", "num_train_epochs=3"], "warmup_steps (0.1) is a share of a number of steps that is not"),
    ],
)
def test_without_a_known_warm_up_the_learning_rate_must_be_set(
    recipe_without_rate: Path, tmp_path: Path, overrides: list[str], reason: str
) -> None:
    with pytest.raises(RecipeError) as error:
        arguments_here(load_recipe(recipe_without_rate, [f"training.{override}" for override in overrides]), tmp_path)
    assert str(error.value).startswith("training.learning_rate: is missing. ")
    assert reason in str(error.value)


@pytest.fixture
def recipe_without_rate(tmp_path: Path) -> Path:
    file = tmp_path / "recipe.yaml"
    corpus = "{generated: spoken_forms, split: train, size: 9}"
    file.write_text(f"data: {{train: {corpus}, validation: {corpus}}}\ntokenizer: {{vocab_size: 300}}\n")
    return file


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.lr_scheduler_type=cosin", "training: cosin is not a valid SchedulerType"),
        ("training.lr_scheduler_kwargs={cycles: 2}", "unexpected keyword argument 'cycles'"),
        ("training.lr_scheduler_type=warmup_stable_decay", "num_decay_steps"),
        ("training.optim=adam", "training: adam is not a valid OptimizerNames"),
        ("training.optim=lomo", "training: You need to"),
        ("training.optim_args=momentum", "training: not enough values to unpack"),
        ("training.log_level=loud", "'loud' is none of debug, info, warning, error, critical, passive"),
        ("training.report_to=nowhere", "training.report_to: 'nowhere' is unknown or not installed"),
        ("generation.num_beams=two", "generation: "),
        ("generation.num_beams=0", "generation: "),
        ("generation.max_length=x", "generation: "),
        ("generation.length_penalty=x", "generation: "),
        ("generation.length_penalty_type=wu", "length_penalty_type ('wu') must be 'gnmt' or None"),
        ("generation.max_length_beyond_source=-1", "max_length_beyond_source (-1) must not be negative"),
        ("generation.num_beam_groups=2", "generation: "),
    ],
)
def test_what_would_fail_late_is_refused_before_anything_is_prepared(
    tmp_path: Path, override: str, message: str
) -> None:
    recipe = load_recipe(CONFIGS / "quickstart.yaml", [override])
    with pytest.raises(RecipeError) as error:
        training_arguments(recipe, tmp_path / "run")
    assert message in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_search_that_works_is_not_refused(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    for search in (
        ["num_beams=5", "length_penalty_type=gnmt", "max_length=null", "max_length_beyond_source=50"],
        ["num_beams=1", "do_sample=true", "top_k=5", "min_length=3"],
        ["max_new_tokens=1000000000", "min_new_tokens=20"],
        ["suppress_tokens=[399]", "use_cache=false"],
    ):
        overrides = [f"generation.{option}" for option in search]
        training_arguments(load_recipe(CONFIGS / "quickstart.yaml", overrides), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_r_drop_costs_what_the_plain_loss_does_where_dropout_changes_nothing(make: Make) -> None:
    trainer = make("model.dropout=0")
    inputs = next(iter(trainer.get_train_dataloader()))
    model, items = trainer.model.train(), torch.tensor(17)
    losses = []
    for trainer.r_drop in (0.0, 5.0):
        loss = trainer.compute_loss(model, dict(inputs), num_items_in_batch=items)
        losses.append((loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(losses[1], losses[0])


def test_r_drop_is_taken_over_two_masks_of_dropout(make: Make) -> None:
    trainer = make("model.dropout=0.3", "training.r_drop=5")
    inputs = next(iter(trainer.get_train_dataloader()))
    torch.manual_seed(1)
    found = trainer.compute_loss(trainer.model.train(), dict(inputs))
    torch.manual_seed(1)
    twice = trainer.model(**{name: torch.cat((part, part)) for name, part in inputs.items()})
    logits, labels = twice.logits.flatten(0, 1), inputs["labels"].flatten()
    first, second = (half[labels != -100] for half in logits.log_softmax(-1).chunk(2))
    divergence = torch.nn.KLDivLoss(reduction="batchmean", log_target=True)
    distance = (divergence(first, second) + divergence(second, first)) / 2
    assert distance > 0.01
    torch.testing.assert_close(found, twice.loss + 5 * distance / 2)


def test_r_drop_brings_two_masks_of_dropout_closer(make: Make) -> None:
    def distance(*overrides: str) -> float:
        trainer = trained(make("model.dropout=0.3", "training.max_steps=60", "training.learning_rate=0.02", *overrides))
        inputs = next(iter(trainer.get_train_dataloader()))
        losses = []
        for weight in (1e-9, 1.0):
            torch.manual_seed(1)
            losses.append(trainer.model.train()(**for_training(inputs, weight)).loss.item())
        return losses[1] - losses[0]

    a, b = distance("training.r_drop=5"), distance()
    assert a < 0.5 * b, (a, b)
