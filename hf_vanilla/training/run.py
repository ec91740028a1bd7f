"""Recipe to run directory: data, tokenizer and model are prepared, trained and averaged."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import (
    AutoTokenizer,
    EarlyStoppingCallback,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)

from ..data.batching import TokenBudgetBatches
from ..data.corpus import Corpus, read_pairs
from ..data.dataset import LengthLimits, PairCollator, TrainingPairs, encode_corpus
from ..data.subword_dropout import SubwordDropout
from ..data.tokenizer import train_tokenizer
from ..files import write_whole
from ..models.configuration_vanilla import VanillaConfig
from ..models.modeling_vanilla import VanillaForConditionalGeneration
from ..private_names import require_private_names
from .checkpoints import average_checkpoints
from .cpu import HOW_FAST_ON_CPU, make_fast_on_cpu
from .progress import ProgressLines, say
from .recipe import Recipe, RecipeError, refuse_another_recipe
from .saving import newest_whole_checkpoint, only_writer
from .stopping import IntervalsOfTheRecipe, LogAtSaves, StopOnSignal, TrainingStoppedError
from .trainer import VanillaTrainer

require_private_names(__name__)

Translate = Callable[[PreTrainedModel, PreTrainedTokenizerFast, Sequence[Sequence[str]]], list[str]]
Score = Callable[[Sequence[str], Sequence[str]], Mapping[str, Any]]

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


@dataclass(frozen=True)
class Prepared:
    """What a training starts from."""

    tokenizer: PreTrainedTokenizerFast
    train: datasets.Dataset
    validation: datasets.Dataset


def train(recipe: Recipe, run: Path, translate: Translate, score: Score) -> PreTrainedModel:
    """
    Train what the recipe says into the directory `run`, or go on with what is there.

    Args:
        translate: Translates the validation sources, to see how good the model is.
        score: Compares these translations with the references.
    """
    run.mkdir(parents=True, exist_ok=True)
    arguments = training_arguments(recipe, run)  # they also say how the processes meet: before anything asks for them
    with only_writer(run) if PartialState().is_main_process else nullcontext():
        set_seed(arguments.seed)
        with PartialState().main_process_first():
            prepared = prepare(recipe, run)
        model = new_model(recipe, prepared.tokenizer)
        if arguments.use_cpu:
            make_fast_on_cpu(model)
            say(f"on CPUs, with {torch.get_num_threads()} threads: {HOW_FAST_ON_CPU}")
        stop = StopOnSignal()
        trainer = make_trainer(recipe, arguments, prepared, model, translate, score, stop)
        found = [newest_whole_checkpoint(run) if trainer.is_world_process_zero() else None]
        checkpoint = broadcast_object_list(found)[0]
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if stop.signal:
            raise TrainingStoppedError(stop.signal, trainer.state.global_step)
        trainer.save_model()
        if trainer.is_world_process_zero():
            finish(recipe, run, trainer)
        trainer.accelerator.wait_for_everyone()
    return model


def training_arguments(recipe: Recipe, run: Path) -> Seq2SeqTrainingArguments:
    chosen = DEFAULT_ARGUMENTS | dict(recipe.arguments)
    chosen |= {"metric_for_best_model": recipe.metric, "greater_is_better": recipe.greater_is_better}
    chosen.setdefault("use_cpu", not torch.accelerator.is_available())
    chosen.setdefault("bf16", "fp16" not in chosen and bfloat16_is_fast())
    if chosen["use_cpu"] and "ddp_timeout" in chosen:
        # Of TrainingArguments, processes on CPUs would learn no timeout, and wait half an hour for one that hangs.
        PartialState(cpu=True, timeout=timedelta(seconds=chosen["ddp_timeout"]))
    try:
        return Seq2SeqTrainingArguments(output_dir=str(run), **chosen)
    except (ValueError, TypeError, OSError) as error:
        raise RecipeError(f"training: {error}") from None


def bfloat16_is_fast() -> bool:
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.cpu._is_avx512_bf16_supported())


def prepare(recipe: Recipe, run: Path) -> Prepared:
    """
    Tokenizer and encoded pairs, made once and then read from the run directory.

    What was begun with another recipe, and did not come to its end, is begun again.
    """
    written, files = run / "recipe.yaml", {split: run / "data" / f"{split}.arrow" for split in ("train", "validation")}
    if all(file.exists() for file in files.values()):
        refuse_another_recipe(recipe, written)
    elif PartialState().is_main_process and written.exists() and written.read_text(encoding="utf-8") != recipe.text:
        for file in (run / "tokenizer.json", *files.values()):
            file.unlink(missing_ok=True)
    if PartialState().is_main_process:
        write_whole(written, recipe.text)
    if not (run / "tokenizer.json").exists():
        section = recipe.tokenizer
        tokenizer = train_tokenizer(texts_of(recipe.data.train), section.kind, section.vocab_size, section.lowercase)
        tokenizer.save_pretrained(run)
    tokenizer = AutoTokenizer.from_pretrained(run)
    limits = LengthLimits(recipe.data.max_source_length, recipe.data.max_target_length)
    encoded = {}
    for split, file in files.items():
        if file.exists():
            encoded[split] = datasets.Dataset.from_file(str(file))
            say(f"{split}: {len(encoded[split]):,} pairs, as they were read into {file}")
        else:
            encoded[split], skipped = encode_corpus(read_pairs(getattr(recipe.data, split)), tokenizer, limits, file)
            say(f"{split}: {len(encoded[split]):,} pairs; skipped: {skipped}")
    return Prepared(tokenizer, **encoded)


def texts_of(corpora: Iterable[Corpus]) -> Iterator[str]:
    for pair in read_pairs(corpora):
        yield from pair.source
        yield pair.target


def new_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> VanillaForConditionalGeneration:
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "pad_token_id", "eos_token_id")}
    ids["decoder_start_token_id"] = tokenizer.bos_token_id
    model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=len(tokenizer), **ids, **recipe.model))
    lengths = {"max_length": recipe.data.max_target_length + 1, "num_beams": 4}
    model.generation_config = GenerationConfig(**lengths | ids | dict(recipe.generation))
    return model


def make_trainer(
    recipe: Recipe,
    arguments: Seq2SeqTrainingArguments,
    prepared: Prepared,
    model: VanillaForConditionalGeneration,
    translate: Translate,
    score: Score,
    stop: StopOnSignal,
) -> VanillaTrainer:
    tokenizer, section = prepared.tokenizer, recipe.training
    dropout = SubwordDropout(tokenizer, recipe.tokenizer.dropout) if recipe.tokenizer.dropout else None
    processes = PartialState().num_processes
    sources, references = prepared.validation["source"][:], prepared.validation["target"][:]

    def validate(model: PreTrainedModel) -> dict[str, Any]:
        translations = translate(model, tokenizer, sources)
        for source, translation in list(zip(sources, translations, strict=True))[: section.sample_translations]:
            say(f"  {' | '.join(source)} -> {translation}")
        return {key: value for key, value in score(translations, references).items() if isinstance(value, float)}

    patience = section.early_stopping_patience
    train_pairs = TrainingPairs(prepared.train, tokenizer, dropout, arguments.seed)
    eval_pairs = TrainingPairs(prepared.validation, tokenizer)
    batches = partial(TokenBudgetBatches, max_tokens=section.max_tokens, seed=arguments.seed)
    train_batches = batches(train_pairs.lengths, per_step=processes * arguments.gradient_accumulation_steps)
    callbacks: list[TrainerCallback] = [
        stop,
        IntervalsOfTheRecipe(),
        LogAtSaves(),
        ProgressLines(train_batches.padding),
    ]
    if patience is not None:
        callbacks.append(EarlyStoppingCallback(patience))
    trainer = VanillaTrainer(
        model,
        arguments,
        train_dataset=train_pairs,
        eval_dataset=eval_pairs,
        data_collator=PairCollator(tokenizer.pad_token_id),
        processing_class=tokenizer,
        callbacks=callbacks,
        train_batches=train_batches,
        eval_batches=batches(eval_pairs.lengths, per_step=processes, shuffle=False),
        validate=validate,
    )
    trainer.remove_callback(PrinterCallback)  # it prints on stdout, where the report goes
    return trainer


def finish(recipe: Recipe, run: Path, trainer: VanillaTrainer) -> None:
    """Average the model if the recipe says so, and leave the history of the training."""
    section = recipe.training
    if section.average_checkpoints > 1:
        chosen = average_checkpoints(
            run, section.average_checkpoints, section.average, recipe.metric, recipe.greater_is_better
        )
        say(f"the model is the average of {', '.join(checkpoint.name for checkpoint in chosen)}")
    write_whole(run / "history.json", json.dumps(trainer.state.log_history, indent=1))
