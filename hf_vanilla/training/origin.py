"""
The model, or the tokenizer alone, that a training starts from: `model.from` and `tokenizer.from` of a recipe.

It is a directory, such as a run, or a repository on the Hub, at a revision if one is named. Only the files below are
read: JSON and safetensors, which hold no code. All that they say is checked before memory is allocated for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import GenerationConfig, PreTrainedTokenizerFast

from ..data.errors import InvalidDataError
from ..data.existing_tokenizer import FILES as TOKENIZER_FILES
from ..data.existing_tokenizer import load_tokenizer, number_of_tokens
from ..files import sha256_of
from ..hub_name import ModelNameError
from ..hub_name import folder_of as folder_of_model
from ..messages import say
from ..models.configuration_vanilla import VanillaConfig
from ..models.generation_vanilla import KEYS as OUR_GENERATION_KEYS
from ..models.modeling_vanilla import VanillaForConditionalGeneration
from ..run_directory import GENERATION_CONFIG, TOKENIZER, WEIGHTS, checkpoints_of, read_origin
from ..weights import (
    CONFIG,
    FIELDS,
    config_of,
    expected_shapes,
    mistakes_of_shapes,
    no_weights,
    read_json,
    refuse_links_that_leave,
    shapes_of,
)
from .options import REFUSED_MODEL, refused_in_generation
from .recipe import Recipe, RecipeError, check_with_model

MODEL_FILES = (CONFIG, GENERATION_CONFIG, WEIGHTS)

IDS = ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id")
ARCHITECTURE = FIELDS - REFUSED_MODEL.keys()
"""What a recipe may set under `model`."""
POSITIONS = "max_position_embeddings"
MAY_DIFFER = {"dropout", "attention_dropout", "activation_dropout", "label_smoothing", POSITIONS}
"""Fields that change nothing about what the weights compute; but of learned positions there may only be more."""
LENGTHS = {"max_length", "max_new_tokens", "max_length_beyond_source"}
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Origin:
    """
    What a training starts from, as the run records it: nothing here says where on this machine it was.

    Args:
        name: The id on the Hub, with the revision if one is named, or the name of the directory without its path.
        is_on_hub: Which of the two it is.
        checksums: SHA-256 of its tokenizer, and of its weights if it is a model.
        config: Of a model, the fields of its configuration.
        generation: Of a model, its generation config.
    """

    name: str
    is_on_hub: bool
    checksums: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)


def completed(recipe: Recipe, run: Path) -> Recipe:
    """
    The recipe, with what it does not say about model, tokens and search taken from the model that it starts from.

    A run that has checkpoints recorded it and needs the model no more.
    """
    if recipe.model_from is None:
        return recipe
    if recipe.tokenizer.from_ is not None:
        raise RecipeError("tokenizer.from: cannot stand beside model.from, which has its tokenizer: take one out")
    origin = origin_of(run) if checkpoints_of(run) else None
    if origin is None:
        origin = _described(recipe.model_from, folder_of(recipe.model_from, "model.from", MODEL_FILES))
    config = VanillaConfig(**origin.config)
    _refuse_other_functions(recipe, config)
    given = {key: value for key, value in recipe.model.items() if value is not None}
    model = {key: getattr(config, key) for key in ARCHITECTURE if hasattr(config, key)} | given
    check_with_model(recipe.data, recipe.training, model)
    tokenizer = replace(recipe.tokenizer, vocab_size=config.vocab_size)
    return replace(recipe, model=model, tokenizer=tokenizer, generation=_search(recipe, origin))


def new_origin(recipe: Recipe) -> Origin | None:
    """What the recipe starts from as it is now, checked; None if from nothing."""
    if recipe.model_from is not None:
        folder = folder_of(recipe.model_from, "model.from", (*MODEL_FILES, *TOKENIZER_FILES))
        described = _described(recipe.model_from, folder)
        _check_weights(folder, VanillaConfig(**described.config))
        checksums = {"weights": sha256_of(folder / WEIGHTS), "tokenizer": _checksum_of_tokenizer(folder)}
        return replace(described, checksums=checksums)
    if recipe.tokenizer.from_ is not None:
        folder = folder_of(recipe.tokenizer.from_, "tokenizer.from", TOKENIZER_FILES)
        return Origin(*_name(recipe.tokenizer.from_), {"tokenizer": _checksum_of_tokenizer(folder)})
    return None


def origin_of(run: Path) -> Origin | None:
    """What a run was started from, as it recorded it."""
    recorded = read_origin(run)
    return Origin(**recorded) if recorded else None


def refuse_another_origin(run: Path, before: Origin | None, now: Origin | None) -> None:
    """Raise an error if what a run starts from changed after it was prepared."""
    changed = _changes(before, now) if before and now else []
    if before and changed:
        raise RecipeError(
            f"{run} was begun with another {before.name}: changed is {'; '.join(changed)}; bring back what it was "
            "begun with, or choose another --output"
        )


def _changes(before: Origin, now: Origin) -> list[str]:
    files = [
        f"its {what} (SHA-256 {before.checksums[what]:.12}... before, {now.checksums[what]:.12}... now)"
        for what in sorted(before.checksums.keys() & now.checksums.keys())
        if before.checksums[what] != now.checksums[what]
    ]
    keys = sorted(key for key in before.config if before.config[key] != now.config.get(key))
    return files + [f"its {key} ({before.config[key]} before, {now.config.get(key)} now)" for key in keys]


def load_weights(model: VanillaForConditionalGeneration, recipe: Recipe, origin: Origin) -> None:
    """
    Copy the weights of the origin into a fresh model, exactly.

    Rows of embeddings that the origin does not have, for new tokens and positions, stay as the model has drawn them.
    """
    name = str(recipe.model_from)
    folder = folder_of(name, "model.from", MODEL_FILES)
    now = replace(_described(name, folder), checksums={"weights": sha256_of(folder / WEIGHTS)})
    if changed := _changes(origin, now):
        raise RecipeError(f"model.from: {name} changed since the run was prepared: {'; '.join(changed)}")
    weights = model.state_dict()
    with torch.no_grad(), safe_open(folder / WEIGHTS, framework="pt") as stored:
        for name in stored.keys():  # noqa: SIM118 -- it has no other iterator
            weight = stored.get_tensor(name)
            weights[name][: len(weight)].copy_(weight)
    say(f"the weights are those of {origin.name} (SHA-256 {origin.checksums['weights']})")


def tokenizer_of(recipe: Recipe, origin: Origin) -> PreTrainedTokenizerFast:
    """The tokenizer of what the recipe starts from."""
    if recipe.model_from is None:
        return load_tokenizer(folder_of(str(recipe.tokenizer.from_), "tokenizer.from", TOKENIZER_FILES))
    folder = folder_of(recipe.model_from, "model.from", TOKENIZER_FILES)
    tokenizer, rows = load_tokenizer(folder), origin.config["vocab_size"]
    if (number := number_of_tokens(folder)) > rows:
        raise InvalidDataError(
            f"{folder / TOKENIZER}: has {number:,} tokens and the model {rows:,}: they do not belong together"
        )
    for key in ("pad_token_id", "eos_token_id"):  # what training pads with and ends texts in
        of_model, found = origin.config[key], getattr(tokenizer, key)
        if found not in (of_model if isinstance(of_model, list) else [of_model]):
            raise InvalidDataError(
                f"{folder / CONFIG}: {key} is {of_model}, and {TOKENIZER} has {found}: they do not belong together"
            )
    return tokenizer


def folder_of(name: str, key: str, files: tuple[str, ...]) -> Path:
    """The directory, or where those files of a repository on the Hub were downloaded to."""
    if Path(name).is_absolute() and not Path(name).is_dir():  # a recipe has directories by their absolute paths
        raise RecipeError(f"{key}: {name} is not a directory")
    try:
        return folder_of_model(name, files)
    except ModelNameError as error:
        raise RecipeError(f"{key}: {error}") from None


def _name(name: str) -> tuple[str, bool]:
    is_on_hub = not Path(name).is_absolute()
    return (name if is_on_hub else Path(name).resolve().name), is_on_hub


def _described(name: str, folder: Path) -> Origin:
    config = _config(folder)
    values = {key: getattr(config, key) for key in FIELDS if hasattr(config, key)}
    return Origin(*_name(name), config=values, generation=_generation(folder))


def _config(folder: Path) -> VanillaConfig:
    """Only fields that we know are taken from the file."""
    file = folder / CONFIG
    found = _read_json(file)
    kind = found.get("model_type")
    if kind != VanillaConfig.model_type:
        raise RecipeError(
            f"model.from: {file} is of a model of type {kind!r:.40}, and a training can only start from one of type "
            f"{VanillaConfig.model_type!r}"
        )
    try:
        return config_of(folder, found)
    except InvalidDataError as error:
        raise RecipeError(f"model.from: {error}") from None


def _generation(folder: Path) -> dict[str, Any]:
    """The keys of its generation config that a recipe may set as well."""
    file = folder / GENERATION_CONFIG
    found = _read_json(file) if file.exists() else {}
    known = {*GenerationConfig().to_dict(), *OUR_GENERATION_KEYS} - {"custom_generate"}
    kept = {
        key: value
        for key, value in found.items()
        if key in known and value is not None and not list(refused_in_generation({key: value}))
    }
    try:
        GenerationConfig(**kept)
    except (ValueError, TypeError) as error:
        raise RecipeError(f"model.from: {file}: {error}") from None
    return kept


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return read_json(file)
    except InvalidDataError as error:
        raise RecipeError(f"model.from: {error}") from None


def _refuse_other_functions(recipe: Recipe, config: VanillaConfig) -> None:
    """The keys under `model` may change how training goes, but not what the weights compute."""
    for key, value in recipe.model.items():
        if value is None and key in ("d_kv", "d_v"):
            value = config.d_model // config.num_heads
        if value is not None and not _keeps_the_function(key, value, config):
            more = " or more" if key == POSITIONS else ""
            raise RecipeError(
                f"model.{key}: {value!r} cannot be: {recipe.model_from} has {getattr(config, key, None)!r}, for which "
                f"its weights were made; set {key} to that{more}, or train without model.from"
            )


def _keeps_the_function(key: str, value: Any, config: VanillaConfig) -> bool:
    if key == POSITIONS and config.position_embedding_type == "learned":
        return bool(value >= config.max_position_embeddings)
    return key in MAY_DIFFER or value == getattr(config, key, None)


def _search(recipe: Recipe, origin: Origin) -> dict[str, Any]:
    """
    The generation config of the origin, in which the keys of the recipe replace the same keys.

    A `max_length` there becomes as long as the targets that this training takes, if it is shorter.
    """
    if not origin.generation:
        return dict(recipe.generation)
    search = {"num_beams": 1} | origin.generation
    needed = recipe.data.max_target_length + 1
    if LENGTHS & search.keys():
        search.setdefault("max_length", None)  # ours would be another limit beside the one that it has
    if isinstance(search.get("max_length"), int):
        search["max_length"] = max(search["max_length"], needed)
    return search | dict(recipe.generation)


def _checksum_of_tokenizer(folder: Path) -> str:
    """Of its file; where there is none, loading it will say so."""
    return sha256_of(folder / TOKENIZER) if (folder / TOKENIZER).exists() else "missing"


def _check_weights(folder: Path, config: VanillaConfig) -> None:
    """Raise an error that names the weight unless the file has exactly those of the configuration, all finite."""
    file = folder / WEIGHTS
    try:
        refuse_links_that_leave(folder)
        if not file.is_file():
            raise InvalidDataError(no_weights(folder))
        for mistake in chain(mistakes_of_shapes(shapes_of(folder), config), _mistakes_of_values(file, config)):
            raise InvalidDataError(f"{file}: {mistake}")
    except InvalidDataError as error:
        raise RecipeError(f"model.from: {error}") from None


def _mistakes_of_values(file: Path, config: VanillaConfig) -> Iterator[str]:
    """Of a file whose weights have the right shapes."""
    _, tied = expected_shapes(config)
    with safe_open(file, framework="pt") as stored:
        names = set(stored.keys())
        for name in sorted(names):
            if (kind := stored.get_slice(name).get_dtype()) not in FLOATS:
                yield f"{name} is {kind}, and must be one of {', '.join(FLOATS)}"
            if not torch.isfinite(stored.get_tensor(name)).all():
                yield f"{name} has values that are not finite (NaN or infinite)"
        for name in sorted(tied.keys() & names):
            if not torch.equal(stored.get_tensor(name), stored.get_tensor(tied[name])):
                yield f"{name} is not {tied[name]}, though tie_word_embeddings says that they are one"
