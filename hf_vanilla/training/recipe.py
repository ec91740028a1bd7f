"""Reads a recipe: a YAML file and overrides become one checked, read-only object."""

import math
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
from .places import MODEL, TOKENIZER, Places, is_of_run, places_of
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
    r_drop: float = 0.0  # the weight of the distance between two passes with different dropout; a step costs twice
    group_references: bool = False  # score a source that occurs several times once, against all of its targets


@dataclass(frozen=True)
class Recipe:
    """
    All settings of a training.

    `model`, `arguments` and `generation` hold only what the file and the overrides set, by the names of VanillaConfig,
    Seq2SeqTrainingArguments and GenerationConfig.

    Args:
        text: The whole recipe as YAML, overrides included, with the fields of a preset in the place of its name.
        places: Where the relative paths in `text` start.
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
    places: Places
    model_from: str | None = None

    @property
    def metric(self) -> str:
        """The name of the score by which the best checkpoint is chosen."""
        return str(self.arguments.get("metric_for_best_model") or "loss").removeprefix("eval_")

    @property
    def folder(self) -> Path:
        """Where the relative paths of the recipe start, but for those that were given on the command line."""
        return self.places.recipe

    @property
    def keys(self) -> dict[str, Any]:
        """Each key that is given, as in `training.max_steps`, and its value."""
        return _flat(yaml12.load(self.text))

    @property
    def greater_is_better(self) -> bool:
        chosen = self.arguments.get("greater_is_better")
        return not self.metric.endswith(("loss", "error_rate", "ter")) if chosen is None else bool(chosen)


def load_recipe(file: Path, overrides: Sequence[str] = ()) -> Recipe:
    """
    Read a recipe; each override is `section.key=value`, its value in YAML.

    Relative paths in a file start at its folder; in overrides, those of TYPED start at the current directory (those of
    corpora at `data.folder`, if that is given there, too).
    """
    recipe = _read(file)
    recipe = _sections({} if recipe is None else recipe, str(file))
    for name, section in recipe.items():
        mapping(section, name)
    in_file = dict(recipe.get("training", {}))
    for override in sorted(overrides, key=lambda override: not override.startswith(f"{PRESET}=")):
        _override(recipe, override)
    _drop_epochs_of_file(in_file, recipe.get("training", {}))
    places = places_of(file).with_typed([override.partition("=")[0] for override in overrides], Path.cwd())
    loaded = _checked_recipe(recipe, places)
    if not is_of_run(file):
        refuse_hybrid(loaded)
    return loaded


def refuse_hybrid(recipe: Recipe) -> None:
    """A kind of tokenizer of earlier versions: their runs can be used, but no new one is trained."""
    if str(recipe.tokenizer.kind) == HYBRID:
        raise RecipeError(
            f"tokenizer.kind: {HYBRID!r} is no more: say which columns hold symbols, as in target: {{column: 1, as: "
            "words}, and set tokenizer.kind: character, for the others to be spelt"
        )


MAY_CHANGE = (
    *("data.test", "data.license", "generation.", "training.average", "training.average_checkpoints"),
    *("training.logging_", "training.save_", "training.dataloader_", "training.ddp_timeout"),
    *("training.sample_translations", "training.report_to", "training.run_name"),
)
"""A training may go on after these keys have changed, as its steps do not depend on them. (With _ or . at the end: all
that begin so.)"""

OF_VALIDATIONS = ("training.eval_", "training.metrics", "training.bleu_tokenize", "training.group_references")
"""And after these, unless validations decide when the learning rate falls."""

BY_A_METRIC = ("reduce_lr_on_plateau", "greedy")
"""Schedules of the learning rate that follow validations."""

WITHOUT_END = ("inverse_sqrt", "constant", "constant_with_warmup")
"""Schedules of the learning rate that do not depend on how long the training is."""


def refuse_another_recipe(recipe: Recipe, file: Path, compared_elsewhere: tuple[str, ...] = ()) -> None:
    """A run goes on only with the recipe in `file`, which it was begun with, or with changes that are allowed."""
    before, now = _flat(_read(file)), recipe.keys
    files, files_now = _files(before, places_of(file)), _files(now, recipe.places)
    same_files = {key for key in files if files[key] == files_now[key]}
    may_change: tuple[str, ...] = MAY_CHANGE + compared_elsewhere
    chosen = DEFAULT_ARGUMENTS | dict(recipe.arguments)
    if chosen["lr_scheduler_type"] not in BY_A_METRIC:
        may_change += OF_VALIDATIONS
    if chosen["lr_scheduler_type"] in WITHOUT_END and not 0 < chosen["warmup_steps"] < 1:
        may_change += ("training.max_steps", "training.num_train_epochs")
    changed = [
        f"{key} ({before.get(key, 'not given')} before, {now.get(key, 'not given')} now)"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not _is_among(may_change, key) and key not in same_files
    ]
    if changed:
        raise RecipeError(
            f"{file.parent} was begun with another recipe: {', '.join(changed)}; choose another --output, or go on "
            "with what it was begun with"
        )


def _is_among(names: Sequence[str], key: str) -> bool:
    return any(key == name or (name.endswith(("_", ".")) and key.startswith(name)) for name in names)


def _files(keys: Mapping[str, Any], places: Places) -> dict[str, Any]:
    """What the keys with paths name: equal for relative and absolute paths of the same files."""
    section = {key.removeprefix("data."): value for key, value in keys.items() if key.startswith("data.")}
    data = read_data_section(section, places)
    corpora = {"data.train": data.train, "data.validation": data.validation}
    return corpora | {"data.folder": corpora} | {key: places.origin(keys.get(key), key) for key in (MODEL, TOKENIZER)}


def _read(file: Path) -> Any:
    try:
        return yaml12.load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecipeError(f"{file}: cannot be read: {error}") from None


def _flat(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{name}.{key}": value for name, section in sections.items() for key, value in (section or {}).items()}


SECTIONS = ("data", "tokenizer", "model", "training", "generation")
HYBRID = "hybrid"
PRESET = "model.preset"


def _checked_recipe(recipe: dict[str, dict[str, Any]], places: Places) -> Recipe:
    if "preset" in (recipe.get("model") or {}):
        recipe["model"] = _with_preset(recipe["model"])
    sections = {name: dict(recipe.get(name) or {}) for name in SECTIONS}
    own = {field.name for field in fields(TrainingSection)}
    ours = {key: value for key, value in sections["training"].items() if key in own}
    arguments = {key: value for key, value in sections["training"].items() if key not in own}
    data = read_data_section(sections["data"], places)
    model_from = places.origin(sections["model"].pop("from", None), MODEL)
    tokenizer = _tokenizer(sections["tokenizer"], places, model_from is not None)
    training = TrainingSection(**checked(TrainingSection, ours, "training"))
    _check_numbers(data, tokenizer, training)
    model = _model(sections["model"], model_from is None)
    if model_from is None:
        check_with_model(data, training, model)
    return Recipe(
        data=data,
        tokenizer=tokenizer,
        training=training,
        model=model,
        arguments=_arguments(arguments, training),
        generation=_generation(sections["generation"]),
        text=yaml12.dump(recipe),
        places=places,
        model_from=model_from,
    )


def _with_preset(section: dict[str, Any]) -> dict[str, Any]:
    """The fields of the preset and the other keys, which count more."""
    if section.get("from") and section["preset"]:
        raise RecipeError(f"{PRESET}: cannot stand beside model.from, whose model has a size already: take one out")
    name = typed(section["preset"], str | None, PRESET)
    others = {key: value for key, value in section.items() if key != "preset"}
    if name is None:
        return others
    try:
        fields_of_preset = shipped.preset(name)
    except FileNotFoundError as error:
        raise RecipeError(f"{PRESET}: {error}") from None
    return {key: value for key, value in fields_of_preset.items() if key != "vocab_size"} | others


def _tokenizer(section: dict[str, Any], places: Places, has_model: bool) -> TokenizerSection:
    values = dict(section)
    origin = places.origin(values.pop("from", None), TOKENIZER)
    given = TOKENIZER if origin else MODEL
    for key in ("kind", "vocab_size", "lowercase"):
        if key in values and (origin or has_model):
            raise RecipeError(f"tokenizer.{key}: cannot stand beside {given}, which has its tokenizer: take one out")
    names = [field.name for field in fields(TokenizerSection) if field.name != "from_"]
    for key in values:
        if key not in names:
            raise RecipeError(unknown_key("tokenizer", key, [*names, "from"]))
    of_earlier_versions = {"kind": values.pop("kind")} if values.get("kind") == HYBRID else {}
    return TokenizerSection(**checked(TokenizerSection, values, "tokenizer") | of_earlier_versions, from_=origin)


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
    if not 0 <= training.r_drop < math.inf:
        raise RecipeError(f"training.r_drop: {training.r_drop} must be at least 0, and finite; try 1")
    longest = max(data.max_source_length, data.max_target_length)
    if longest > training.max_tokens:
        raise RecipeError(
            f"training.max_tokens: {training.max_tokens} is too few for the longest text that data.max_source_length "
            f"and data.max_target_length allow ({longest})"
        )


def check_with_model(data: DataSection, training: TrainingSection, model: dict[str, Any]) -> None:
    """What only a whole model can tell, be it described in the recipe or there already."""
    config = VanillaConfig(**model)
    for name in ("max_source_length", "max_target_length"):
        length = getattr(data, name)
        if config.position_embedding_type == "learned" and length > config.max_position_embeddings:
            raise RecipeError(
                f"data.{name}: {length} is more than the model's learned positions: lower it, or raise "
                f"model.max_position_embeddings ({config.max_position_embeddings})"
            )
    if training.r_drop and not (config.dropout or config.attention_dropout or config.activation_dropout):
        raise RecipeError(f"training.r_drop: {training.r_drop:g} has no effect without dropout: set model.dropout")


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


def _override(recipe: dict[str, Any], override: str) -> None:
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
    if name == PRESET and value is not None:
        place.clear()  # the file's model
    place[key] = value


def _drop_epochs_of_file(in_file: Mapping[str, Any], training: dict[str, Any]) -> None:
    """Those of a recipe have no effect beside a number of steps that was typed."""
    epochs, steps = "num_train_epochs", training.get("max_steps")
    has_typed_steps = type(steps) is int and steps > 0 and steps != in_file.get("max_steps")
    if has_typed_steps and epochs in in_file and training.get(epochs) == in_file[epochs]:
        del training[epochs]


def _sections(recipe: Any, where: str) -> dict[str, Any]:
    for name in mapping(recipe, where):
        if name not in SECTIONS:
            raise RecipeError(unknown_key(where, name, SECTIONS))
    return {name: section for name, section in recipe.items() if section is not None}
