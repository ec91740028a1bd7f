"""Where the relative paths of a recipe start, and what they mean."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..hub_name import may_be_on_hub
from ..run_directory import PREPARED, RECIPE, is_run
from .values import RecipeError, typed

FOLDER, MODEL, TOKENIZER = "data.folder", "model.from", "tokenizer.from"
CORPORA = ("data.train", "data.validation", "data.test")
TYPED = (FOLDER, MODEL, TOKENIZER, *CORPORA)
"""Keys whose paths start at the current directory if they, or keys in them, are given on the command line."""


@dataclass(frozen=True)
class Places:
    """
    Where relative paths start.

    A run records this, as its recipe has the paths as they were written: it may be published, and need not say where
    on a machine its files were.

    Args:
        recipe: The folder of the recipe.
        typed: For each key that was given on the command line, and is in TYPED or inside of one that is, the current
            directory of then.
    """

    recipe: Path
    typed: Mapping[str, Path] = field(default_factory=dict)

    def start_of(self, key: str) -> Path:
        return self.typed.get(key, self.recipe)

    def folder(self, value: Any) -> Path:
        """The folder of the files in the section `data`, from its key `folder`."""
        if typed(value, str | None, FOLDER) is None:
            return self.recipe
        return located(value, self.start_of(FOLDER), FOLDER)

    def typed_start(self, key: str) -> Path | None:
        """Where a path in a corpus starts if it was typed: `data.train[0].file`, in a value for `data.train`, say."""
        section, split, *inner = re.sub(r"\[\d+\]", "", key).split(".")
        names = [f"{section}.{split}", ".".join([section, split, *inner])]
        return next((self.typed[name] for name in reversed(names) if name in self.typed), None)

    def with_typed(self, keys: Iterable[str], start: Path) -> "Places":
        """The same after these keys were given on the command line, where `start` is the current directory."""
        new = {key: start for key in keys if any(is_in(key, name) for name in TYPED)}
        before = {key: place for key, place in self.typed.items() if not any(is_in(key, name) for name in new)}
        both = before | new
        if FOLDER in new:  # by which it is said where all files of the data are
            both = {key: place for key, place in both.items() if not any(is_in(key, name) for name in CORPORA)}
        return replace(self, typed=both)

    def origin(self, value: Any, key: str) -> str | None:
        """The absolute path of a directory, or what may be a name on the Hub if there is no such directory."""
        if typed(value, str | None, key) is None:
            return None
        place = located(value, self.start_of(key), key)
        return str(value) if may_be_on_hub(value) and not place.is_dir() else str(place)

    def as_json(self) -> dict[str, str]:
        return {"": str(self.recipe)} | {key: str(place) for key, place in self.typed.items()}


def is_in(key: str, other: str) -> bool:
    return f"{key}.".startswith(f"{other}.")


def places_of(file: Path) -> Places:
    """Relative paths start at the folder of a recipe; in the recipe of a run where they did when the run was begun."""
    folder = file.parent.resolve()
    if not is_of_run(file):
        return Places(folder)
    prepared = folder / PREPARED
    recorded = json.loads(prepared.read_text(encoding="utf-8")).get("places") if prepared.exists() else None
    places = {key: Path(place) for key, place in (recorded or {}).items()}
    return Places(places.pop("", Path.cwd()), places)  # in earlier versions at the current directory


def is_of_run(file: Path) -> bool:
    return file.name == RECIPE and is_run(file.parent)


def located(path: str, folder: Path, where: str) -> Path:
    """An absolute path without `..`, so that the same file has the same path; `~` is the user's home."""
    if "\0" in path:
        raise RecipeError(f"{where}: {path!r} cannot be the name of a file or folder")
    try:
        place = folder / Path(path).expanduser()
    except RuntimeError as error:
        raise RecipeError(f"{where}: {path!r}: {error}") from None
    if place.name == "..":
        return place.resolve()
    return place.parent.resolve() / place.name if ".." in place.parts else place  # the name of a link tells its format
