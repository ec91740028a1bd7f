"""Values of a recipe: checked against the types of fields, and named in the message if they are wrong."""

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import type_validator


class RecipeError(ValueError):
    """A recipe that cannot be used. The message names the key, its value and what would be right."""


def checked(cls: type, values: Mapping[str, Any], where: str, also: Iterable[str] = ()) -> dict[str, Any]:
    """`values` with the types that the fields of `cls` have. `also`: more valid keys, to suggest for misspelt ones."""
    types_of = {field.name: field.type for field in fields(cls) if field.init and not field.name.startswith("_")}
    for key in values:
        if key not in types_of:
            raise RecipeError(unknown_key(where, key, [*types_of, *also]))
    return {key: typed(value, types_of[key], f"{where}.{key}") for key, value in values.items()}


def typed(value: Any, hint: Any, where: str) -> Any:
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


def mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise RecipeError(f"{where}: must be a mapping of keys to values, not {value!r:.60}")
    return value


def unknown_key(where: str, key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f"{where}: there is no key {key!r}" + (f"; did you mean {near[0]!r}?" if near else "")
