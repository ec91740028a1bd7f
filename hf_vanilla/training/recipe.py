"""Reads a recipe: a YAML file and overrides become one checked, read-only object."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers import GenerationConfig, Seq2SeqTrainingArguments

from ..data.tokenizer import TokenizerKind
from ..models.configuration_vanilla import VanillaConfig
from ..models.generation_vanilla import KEYS as OUR_GENERATION_KEYS
from ..run_directory import PREPARED, RECIPE, is_run
from . import shipped, yaml12
from .data_section import DataSection, read_data_section
from .options import (
    DEFAULT_ARGUMENTS,
    contradictions,
    refused_arguments,
    refused_in_generation,
    refused_in_model,
    wrong_numbers,
)
from .values import RecipeError, checked, mapping, typed, unknown_key

__all__ = ["DataSection", "Recipe", "RecipeError", "TokenizerSection", "TrainingSection", "load_recipe"]


@dataclass(frozen=True)
class TokenizerSection:
    """
    Which tokenizer is trained on the training pairs, or which existing one is taken.

    Args:
        from_: The key `from`: the absolute path of a directory, or an id on the Hub.
    """

    kind: TokenizerKind = "bpe"
    vocab_size: int = 8000
    lowercase: bool = False
    dropout: float = 0.0
    from_: str | None = None


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
    Seq2SeqTrainingArguments and GenerationConfig.

    Args:
        text: The whole recipe as YAML, overrides included, with the fields of a preset in the place of its name.
        folder: Where the relative paths in `text` start: an absolute path.
        model_from: The model whose weights and tokenizer the training starts from, if any: the absolute path of a
            directory, or an id on the Hub.
    """

    data: DataSection
    tokenizer: TokenizerSection
    training: TrainingSection
    model: Mapping[str, Any]
    arguments: Mapping[str, Any]
    generation: Mapping[str, Any]
    text: str
    folder: Path
    model_from: str | None = None

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
        return not self.metric.endswith(("loss", "error_rate")) if chosen is None else bool(chosen)


def load_recipe(file: Path, overrides: Sequence[str] = ()) -> Recipe:
    """
    Read a recipe; each override is `section.key=value`, its value in YAML.

    Relative paths in a file start at its folder, those in overrides at the current directory.
    """
    recipe = _read(file)
    recipe = _sections({} if recipe is None else recipe, str(file))
    for name, section in recipe.items():
        mapping(section, name)
    folder = folder_of(file)
    for override in sorted(overrides, key=lambda override: not override.startswith(f"{PRESET}=")):
        _override(recipe, override, folder)
    return _checked_recipe(recipe, folder)


def folder_of(file: Path) -> Path:
    """Where the relative paths in a recipe start: at its folder, and in that of a run where they did when it began."""
    folder = file.parent.resolve()
    if file.name != RECIPE or not is_run(folder):
        return folder
    prepared = folder / PREPARED
    recorded = json.loads(prepared.read_text(encoding="utf-8")).get("folder") if prepared.exists() else None
    return Path(recorded) if recorded else Path.cwd()  # earlier versions started at the current directory


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
FOLDER = "data.folder"
PATHS = (FOLDER, "model.from", "tokenizer.from")
PRESET = "model.preset"


def _checked_recipe(recipe: dict[str, dict[str, Any]], folder: Path) -> Recipe:
    if "preset" in (recipe.get("model") or {}):
        recipe["model"] = _with_preset(recipe["model"])
    sections = {name: dict(recipe.get(name) or {}) for name in SECTIONS}
    own = {field.name for field in fields(TrainingSection)}
    ours = {key: value for key, value in sections["training"].items() if key in own}
    arguments = {key: value for key, value in sections["training"].items() if key not in own}
    data = read_data_section(sections["data"], folder)
    model_from = _origin(sections["model"].pop("from", None), folder, "model.from")
    tokenizer = _tokenizer(sections["tokenizer"], folder, model_from is not None)
    training = TrainingSection(**checked(TrainingSection, ours, "training"))
    _check_numbers(data, tokenizer, training)
    model = _model(sections["model"], model_from is None)
    if model_from is None:
        _check_positions(data, model)
    return Recipe(
        data=data,
        tokenizer=tokenizer,
        training=training,
        model=model,
        arguments=_arguments(arguments, training),
        generation=_generation(sections["generation"]),
        text=yaml12.dump(recipe),
        folder=folder,
        model_from=model_from,
    )


def _with_preset(section: dict[str, Any]) -> dict[str, Any]:
    """The fields of the preset and the other keys, which count more."""
    if "from" in section:
        raise RecipeError(f"{PRESET}: cannot stand beside model.from, whose model has a size already: take one out")
    name = typed(section["preset"], str, PRESET)
    try:
        fields_of_preset = shipped.preset(name)
    except FileNotFoundError as error:
        raise RecipeError(f"{PRESET}: {error}") from None
    others = {key: value for key, value in section.items() if key != "preset"}
    return {key: value for key, value in fields_of_preset.items() if key != "vocab_size"} | others


def _origin(value: Any, folder: Path, where: str) -> str | None:
    """An existing directory as an absolute path, or else what may be an id on the Hub as it is."""
    if typed(value, str | None, where) is None:
        return None
    place = folder / value
    if not place.is_dir() and _may_be_on_hub(value):
        return str(value)
    return str(place)


def _may_be_on_hub(name: str) -> bool:
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) is not None


def _tokenizer(section: dict[str, Any], folder: Path, has_model: bool) -> TokenizerSection:
    values = dict(section)
    origin = _origin(values.pop("from", None), folder, "tokenizer.from")
    given = "tokenizer.from" if origin else "model.from"
    for key in ("kind", "vocab_size", "lowercase"):
        if key in values and (origin or has_model):
            raise RecipeError(f"tokenizer.{key}: cannot stand beside {given}, which has its tokenizer: take one out")
    names = [field.name for field in fields(TokenizerSection) if field.name != "from_"]
    for key in values:
        if key not in names:
            raise RecipeError(unknown_key("tokenizer", key, [*names, "from"]))
    return TokenizerSection(**checked(TokenizerSection, values, "tokenizer"), from_=origin)


def _arguments(section: dict[str, Any], training: TrainingSection) -> dict[str, Any]:
    ours = asdict(training)
    _refuse(refused_arguments(section))
    arguments = checked(Seq2SeqTrainingArguments, section, "training", ours)
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
            raise RecipeError(unknown_key("generation", key, known))
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


def _model(section: dict[str, Any], is_whole: bool) -> dict[str, Any]:
    """Fields of the model, checked together if they are all (beside `from` they are only some)."""
    _refuse(refused_in_model(section))
    values = checked(VanillaConfig, section, "model", ["preset", "from"])
    try:
        if is_whole:
            VanillaConfig(**values)
    except StrictDataclassError as error:
        raise RecipeError(f"model: {str(error).splitlines()[-1].strip()}") from None
    return values


def _override(recipe: dict[str, Any], override: str, folder: Path) -> None:
    name, equals, text = override.partition("=")
    section, dot, path = name.partition(".")
    if not (equals and dot and section in SECTIONS):
        raise RecipeError(f"{override!r}: an override is section.key=value, the section one of {', '.join(SECTIONS)}")
    place = recipe.setdefault(section, {})
    *parents, key = path.split(".")
    for parent in parents:
        place = place.setdefault(parent, {})
        mapping(place, name)
    try:
        value = yaml12.load(text)
    except yaml.YAMLError:
        raise RecipeError(f"{override!r}: {text!r} is not YAML") from None
    if name == PRESET:
        place.clear()  # the file's model
    elif name == "training.max_steps":
        place.pop("num_train_epochs", None)  # the file's: without effect beside it
    is_relative = name in PATHS and isinstance(value, str) and not Path(value).is_absolute()
    is_path = is_relative and (name == FOLDER or Path(value).is_dir() or not _may_be_on_hub(value))
    place[key] = os.path.relpath(value, folder) if is_path else value  # typed where the current directory counts


def _sections(recipe: Any, where: str) -> dict[str, Any]:
    for name in mapping(recipe, where):
        if name not in SECTIONS:
            raise RecipeError(unknown_key(where, name, SECTIONS))
    return {name: section for name, section in recipe.items() if section is not None}
