"""Reads a recipe: a YAML file and overrides become one checked, read-only object."""

import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import yaml
from huggingface_hub.dataclasses import type_validator
from huggingface_hub.errors import StrictDataclassError
from transformers import GenerationConfig, Seq2SeqTrainingArguments

from ..data.corpus import Corpus, GeneratedPairs, HubDataset, ParallelText, Table
from ..data.tokenizer import TokenizerKind
from ..models.configuration_vanilla import VanillaConfig
from ..models.generation_vanilla import KEYS as OUR_GENERATION_KEYS
from . import yaml12
from .options import (
    DEFAULT_ARGUMENTS,
    contradictions,
    refused_arguments,
    refused_in_generation,
    refused_in_model,
    wrong_numbers,
)


class RecipeError(ValueError):
    """A recipe that cannot be used. The message names the key, its value and what would be right."""


@dataclass(frozen=True)
class DataSection:
    """Where the training, validation and test pairs are, and how many tokens they may have."""

    train: tuple[Corpus, ...]
    validation: tuple[Corpus, ...]
    test: tuple[Corpus, ...] = ()
    source_language: str | None = None
    target_language: str | None = None
    max_source_length: int = 256
    max_target_length: int = 256


@dataclass(frozen=True)
class TokenizerSection:
    """Which tokenizer is trained on the training pairs."""

    kind: TokenizerKind = "bpe"
    vocab_size: int = 8000
    lowercase: bool = False
    dropout: float = 0.0


@dataclass(frozen=True)
class TrainingSection:
    """The keys under `training` that Seq2SeqTrainingArguments does not have."""

    max_tokens: int = 4096
    early_stopping_patience: int | None = None
    average_checkpoints: int = 1
    average: Literal["last", "best"] = "last"
    sample_translations: int = 3
    bleu_tokenize: str = "13a"
    metrics: tuple[str, ...] = ("bleu", "chrf", "exact_match", "character_error_rate")
    group_references: bool = False  # score a source that occurs several times once, against all of its targets


@dataclass(frozen=True)
class Recipe:
    """
    All settings of a training.

    `model`, `arguments` and `generation` hold only what the file and the overrides set, by the names of VanillaConfig,
    Seq2SeqTrainingArguments and GenerationConfig. `text` is the whole recipe as YAML.
    """

    data: DataSection
    tokenizer: TokenizerSection
    training: TrainingSection
    model: Mapping[str, Any]
    arguments: Mapping[str, Any]
    generation: Mapping[str, Any]
    text: str

    @property
    def metric(self) -> str:
        """The name of the score by which the best checkpoint is chosen."""
        return str(self.arguments.get("metric_for_best_model") or "loss").removeprefix("eval_")

    @property
    def keys(self) -> dict[str, Any]:
        """Each key that is given, as in `training.max_steps`, and its value."""
        return _flat(yaml12.load(self.text))

    @property
    def greater_is_better(self) -> bool:
        chosen = self.arguments.get("greater_is_better")
        return not self.metric.endswith(("loss", "error_rate", "ter")) if chosen is None else bool(chosen)


def load_recipe(file: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe; each override is `section.key=value`, its value in YAML."""
    recipe = _read(file)
    recipe = _sections({} if recipe is None else recipe, str(file))
    for name, section in recipe.items():
        _mapping(section, name)
    for override in overrides:
        _override(recipe, override)
    return _checked_recipe(recipe)


MAY_CHANGE = (
    *("data.test", "generation", "training.average", "training.logging_", "training.eval_", "training.save_"),
    *("training.sample_translations", "training.bleu_tokenize"),
    *("training.metrics", "training.group_references", "training.report_to", "training.run_name"),
    *("training.dataloader_", "training.ddp_timeout"),
)
"""A training may go on after these keys have changed, as its steps do not depend on them (beginnings of keys)."""

WITHOUT_END = ("inverse_sqrt", "constant", "constant_with_warmup")
"""Schedules of the learning rate that do not depend on how long the training is."""


def refuse_another_recipe(recipe: Recipe, file: Path, compared_elsewhere: tuple[str, ...] = ()) -> None:
    """A run goes on only with the recipe in `file`, which it was begun with, or with changes that are allowed."""
    before, now = _flat(_read(file)), recipe.keys
    may_change: tuple[str, ...] = MAY_CHANGE + compared_elsewhere
    chosen = DEFAULT_ARGUMENTS | dict(recipe.arguments)
    if chosen["lr_scheduler_type"] in WITHOUT_END and not 0 < chosen["warmup_steps"] < 1:
        may_change += ("training.max_steps", "training.num_train_epochs")
    changed = [
        f"{key} ({before.get(key, 'not given')} before, {now.get(key, 'not given')} now)"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not key.startswith(may_change)
    ]
    if changed:
        raise RecipeError(
            f"{file.parent} was begun with another recipe: {', '.join(changed)}; choose another --output, or go on "
            "with what it was begun with"
        )


def _read(file: Path) -> Any:
    try:
        return yaml12.load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecipeError(f"{file}: cannot be read: {error}") from None


def _flat(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{name}.{key}": value for name, section in sections.items() for key, value in (section or {}).items()}


SECTIONS = ("data", "tokenizer", "model", "training", "generation")


def _checked_recipe(recipe: dict[str, dict[str, Any]]) -> Recipe:
    sections = {name: recipe.get(name) or {} for name in SECTIONS}
    own = {field.name for field in fields(TrainingSection)}
    ours = {key: value for key, value in sections["training"].items() if key in own}
    arguments = {key: value for key, value in sections["training"].items() if key not in own}
    data = _data(sections["data"])
    tokenizer = TokenizerSection(**_checked(TokenizerSection, sections["tokenizer"], "tokenizer"))
    training = TrainingSection(**_checked(TrainingSection, ours, "training"))
    _check_numbers(data, tokenizer, training)
    model = _model(sections["model"])
    _check_positions(data, model)
    return Recipe(
        data=data,
        tokenizer=tokenizer,
        training=training,
        model=model,
        arguments=_arguments(arguments, training),
        generation=_generation(sections["generation"]),
        text=yaml12.dump(recipe),
    )


def _arguments(section: dict[str, Any], training: TrainingSection) -> dict[str, Any]:
    ours = asdict(training)
    _refuse(refused_arguments(section))
    arguments = _checked(Seq2SeqTrainingArguments, section, "training", ours)
    _refuse(wrong_numbers(arguments))
    _refuse(contradictions(arguments, ours))
    return arguments


def _generation(section: dict[str, Any]) -> dict[str, Any]:
    _refuse(refused_in_generation(section))
    try:
        GenerationConfig(**section)
    except (ValueError, TypeError) as error:
        raise RecipeError(f"generation: {error}") from None
    known = [*GenerationConfig().to_dict(), *OUR_GENERATION_KEYS]
    for key in section:
        if key not in known:
            raise RecipeError(_unknown("generation", key, known))
    return section


def _refuse(mistakes: Iterable[str]) -> None:
    for mistake in mistakes:
        raise RecipeError(mistake)


def _check_numbers(data: DataSection, tokenizer: TokenizerSection, training: TrainingSection) -> None:
    patience = training.early_stopping_patience
    for name, number, least in (
        ("data.max_source_length", data.max_source_length, 1),
        ("data.max_target_length", data.max_target_length, 1),
        ("tokenizer.vocab_size", tokenizer.vocab_size, 1),
        ("training.average_checkpoints", training.average_checkpoints, 1),
        ("training.sample_translations", training.sample_translations, 0),
        ("training.early_stopping_patience", 1 if patience is None else patience, 1),
    ):
        if not least <= number < 2**31:
            raise RecipeError(f"{name}: {number} must be at least {least}, and less than 2^31")
    if not 0 <= tokenizer.dropout < 1:
        raise RecipeError(f"tokenizer.dropout: {tokenizer.dropout} must be at least 0 and less than 1")
    if tokenizer.dropout and tokenizer.kind != "bpe":
        raise RecipeError(f"tokenizer.dropout: {tokenizer.dropout} needs tokenizer.kind: bpe")
    longest = max(data.max_source_length, data.max_target_length)
    if longest > training.max_tokens:
        raise RecipeError(
            f"training.max_tokens: {training.max_tokens} is too few for the longest text that data.max_source_length "
            f"and data.max_target_length allow ({longest})"
        )


def _check_positions(data: DataSection, model: dict[str, Any]) -> None:
    config = VanillaConfig(**model)
    for name in ("max_source_length", "max_target_length"):
        length = getattr(data, name)
        if config.position_embedding_type == "learned" and length > config.max_position_embeddings:
            raise RecipeError(
                f"data.{name}: {length} is more than the model's learned positions: lower it, or raise "
                f"model.max_position_embeddings ({config.max_position_embeddings})"
            )


def _model(section: dict[str, Any]) -> dict[str, Any]:
    _refuse(refused_in_model(section))
    values = _checked(VanillaConfig, section, "model")
    try:
        VanillaConfig(**values)
    except StrictDataclassError as error:
        raise RecipeError(f"model: {str(error).splitlines()[-1].strip()}") from None
    return values


def _data(section: dict[str, Any]) -> DataSection:
    section = dict(section)
    folder = Path(_value(section.pop("folder", "."), str, "data.folder"))
    for split in ("train", "validation"):
        if split not in section:
            raise RecipeError(f"data.{split}: is missing")
    for split in ("train", "validation", "test"):
        if split in section:
            corpora = section[split] if isinstance(section[split], list) else [section[split]]
            section[split] = [
                _corpus(corpus, folder, f"data.{split}" + (f"[{number}]" if len(corpora) > 1 else ""))
                for number, corpus in enumerate(corpora)
            ]
    return DataSection(**_checked(DataSection, section, "data", ["folder"]))


def _corpus(corpus: Any, folder: Path, where: str) -> Corpus:
    """The keys tell the kind of corpus."""
    corpus = dict(_mapping(corpus, where))
    kinds: dict[str, type] = {"generated": GeneratedPairs, "dataset": HubDataset, "file": Table}
    kind = next((kind for key, kind in kinds.items() if key in corpus), ParallelText)
    if kind in (HubDataset, Table) and not isinstance(corpus.get("source", []), list):
        corpus["source"] = [corpus["source"]]
    values = _checked(kind, corpus, where, list(kinds))
    for field in fields(kind):
        if field.name not in values and field.default is MISSING:
            raise RecipeError(f"{where}.{field.name}: is missing")
    return kind(**{key: folder / value if isinstance(value, Path) else value for key, value in values.items()})


def _checked(cls: type, values: Mapping[str, Any], where: str, also: Iterable[str] = ()) -> dict[str, Any]:
    """`values` with the types that the fields of `cls` have. `also`: more valid keys, to suggest for misspelt ones."""
    types_of = {field.name: field.type for field in fields(cls) if field.init and not field.name.startswith("_")}
    for key in values:
        if key not in types_of:
            raise RecipeError(_unknown(where, key, [*types_of, *also]))
    return {key: _value(value, types_of[key], f"{where}.{key}") for key, value in values.items()}


def _value(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type `hint`: YAML has no paths and no tuples, and people write 1.0 as 1."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if is_union else (hint,)
    if type(value) is int and float in options and int not in options:
        value = float(value)
    if isinstance(value, str) and Path in options:
        value = Path(value)
    if isinstance(value, list) and any(typing.get_origin(option) is tuple for option in options):
        value = tuple(value)
    try:
        type_validator(where, value, hint)
    except TypeError:
        expected = " or ".join(_name(option) for option in options)
        raise RecipeError(f"{where}: {value!r} is {type(value).__name__}, expected {expected}") from None
    return value


def _name(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(hint)))
    return str(getattr(hint, "__name__", hint))


def _override(recipe: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    section, dot, path = name.partition(".")
    if not (equals and dot and section in SECTIONS):
        raise RecipeError(f"{override!r}: an override is section.key=value, the section one of {', '.join(SECTIONS)}")
    place = recipe.setdefault(section, {})
    *parents, key = path.split(".")
    for parent in parents:
        place = place.setdefault(parent, {})
        _mapping(place, name)
    try:
        place[key] = yaml12.load(text)
    except yaml.YAMLError:
        raise RecipeError(f"{override!r}: {text!r} is not YAML") from None
    if name == "training.max_steps":
        place.pop("num_train_epochs", None)  # the file's: without effect beside it


def _sections(recipe: Any, where: str) -> dict[str, Any]:
    for name in _mapping(recipe, where):
        if name not in SECTIONS:
            raise RecipeError(_unknown(where, name, SECTIONS))
    return {name: section for name, section in recipe.items() if section is not None}


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise RecipeError(f"{where}: must be a mapping of keys to values, not {value!r:.60}")
    return value


def _unknown(where: str, key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f"{where}: there is no key {key!r}" + (f"; did you mean {near[0]!r}?" if near else "")
