"""From a recipe to a run directory: prepare the data, train the model, average its checkpoints."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import (
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
from ..data.dataset import PairCollator, TrainingPairs, mixture_of, prefixes_of, subword_dropout_of
from ..files import write_whole
from ..messages import say
from ..models.configuration_vanilla import VanillaConfig
from ..models.modeling_vanilla import VanillaForConditionalGeneration
from ..run_directory import HISTORY, WEIGHTS, refuse_foreign
from .arguments import training_arguments
from .checkpoints import average_checkpoints
from .cpu import make_fast_on_cpu
from .machine import ThreadsOfTheRun, refuse_unsupported_systems
from .origin import IDS, Origin, completed, load_weights
from .preparation import Prepared, prepare, read_prepared
from .progress import ProgressLines
from .ranks import Ranks
from .recipe import Recipe, RecipeError
from .saving import newest_whole_checkpoint, only_writer, unfinished
from .stopping import IntervalsOfTheRecipe, LogAtSaves, StopOnSignal, TrainingStoppedError
from .trainer import VanillaTrainer

Translate = Callable[[PreTrainedModel, PreTrainedTokenizerFast, Sequence[Sequence[str]], Sequence[str]], list[str]]
Score = Callable[[Sequence[str], Sequence[str]], Mapping[str, Any]]


def train(recipe: Recipe, run: Path, translate: Translate, score: Score) -> PreTrainedModel:
    """
    Train what the recipe says into the directory `run`, or go on with the training there.

    Args:
        translate: Translates the validation sources, of which each has a prefix, which may be empty.
        score: Compares these translations with the references.
    """
    refuse_unsupported_systems()
    recipe = completed(recipe, run)
    arguments = training_arguments(recipe, run)  # first, as they also set how ranks connect
    set_seed(arguments.seed)
    ranks = Ranks()
    with ExitStack() as held:
        prepared = prepare_together(recipe, run, ranks, held)
        model = new_model(recipe, prepared.tokenizer, prepared.origin)
        checkpoint = ranks.first(lambda: checkpoint_to_go_on_from(run))
        if recipe.model_from and prepared.origin and not checkpoint:
            load_weights(model, recipe, prepared.origin)
        if arguments.use_cpu:
            make_fast_on_cpu(model)
        stop = StopOnSignal()
        trainer = make_trainer(recipe, arguments, prepared, model, translate, score, stop)
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        finally:
            stop.restore_handlers()
        if stop.signal:
            raise TrainingStoppedError(stop.signal, trainer.state.global_step)
        trainer.save_model()
        ranks.first(lambda: finish(recipe, run, trainer))
    return model


def checkpoint_to_go_on_from(run: Path) -> Path | None:
    checkpoint = newest_whole_checkpoint(run)
    if not checkpoint and (run / HISTORY).exists() and (run / WEIGHTS).exists():
        raise RecipeError(
            f"{run} is finished, and has no checkpoint to go on from: measure it (hf-vanilla evaluate {run}), or "
            "choose another --output"
        )
    return checkpoint


def prepare_together(recipe: Recipe, run: Path, ranks: Ranks, held: ExitStack) -> Prepared:
    """
    Have the first rank prepare the run directory, and all ranks read it.

    Args:
        held: Keeps the run locked until it is closed.
    """

    def begin() -> None:
        refuse_foreign(run)
        run.mkdir(parents=True, exist_ok=True)
        held.enter_context(only_writer(run))

    def make() -> None:
        prepare(recipe, run)

    ranks.must_agree(recipe.keys)
    ranks.first(begin)
    ranks.must_share(unfinished(run))
    ranks.first(make)
    prepared = read_prepared(run)
    ranks.must_agree(prepared.checksums())
    return prepared


def new_model(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast, origin: Origin | None = None
) -> VanillaForConditionalGeneration:
    """A model with fresh weights, of the size that the (completed) recipe says, for the tokens of the tokenizer."""
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "pad_token_id", "eos_token_id")}
    ids["decoder_start_token_id"] = tokenizer.bos_token_id
    vocab_size = len(tokenizer)
    if origin and recipe.model_from:
        ids = {name: origin.config[name] for name in IDS}
        vocab_size = max(vocab_size, origin.config["vocab_size"])  # its embedding may have rows that no token uses
    model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=vocab_size, **ids, **recipe.model))
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
    dropout = subword_dropout_of(prepared.train) if recipe.tokenizer.dropout else None
    processes = PartialState().num_processes
    sources, references = prepared.validation["source"][:], prepared.validation["target"][:]
    prefixes = prefixes_of(prepared.validation)

    def validate(model: PreTrainedModel) -> dict[str, Any]:
        translations = translate(model, tokenizer, sources, prefixes)
        samples = list(zip(prefixes, sources, translations, strict=True))[: section.sample_translations]
        for prefix, source, translation in samples:
            say(f"  {prefix}{' | '.join(source)} -> {translation}")
        return {key: value for key, value in score(translations, references).items() if isinstance(value, float)}

    patience = section.early_stopping_patience
    mixture = mixture_of(prepared.train, [corpus.weight for corpus in recipe.data.train], arguments.seed)
    train_pairs = TrainingPairs(prepared.train, dropout, arguments.seed, mixture, recipe.data.limits)
    eval_pairs = TrainingPairs(prepared.validation)
    batches = partial(TokenBudgetBatches, max_tokens=section.max_tokens, seed=arguments.seed)
    train_batches = batches(train_pairs.lengths, per_step=processes * arguments.gradient_accumulation_steps)
    callbacks: list[TrainerCallback] = [
        stop,
        IntervalsOfTheRecipe(),
        LogAtSaves(),
        ThreadsOfTheRun(),
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
        r_drop=section.r_drop,
    )
    trainer.remove_callback(PrinterCallback)  # it prints on stdout, where the report goes
    return trainer


def finish(recipe: Recipe, run: Path, trainer: VanillaTrainer) -> None:
    """Average checkpoints if the recipe says so, and write the history of the training."""
    section = recipe.training
    if section.average_checkpoints > 1:
        chosen = average_checkpoints(
            run, section.average_checkpoints, section.average, recipe.metric, recipe.greater_is_better
        )
        say(f"the model is the average of {', '.join(checkpoint.name for checkpoint in chosen)}")
    write_whole(run / HISTORY, json.dumps(trainer.state.log_history, indent=1))
