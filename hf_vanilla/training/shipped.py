"""The recipes, presets and launcher files that come with this package, found by their names."""

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import yaml12

SUFFIX = ".yaml"
MODELS = "models"
LAUNCHERS = "accelerate"


@dataclass(frozen=True)
class Shipped:
    """A recipe, and what the comment at its beginning says about it."""

    name: str
    path: Path
    about: str
    needs: str
    reaches: str


def folder() -> Path:
    """Where the files are: inside the installed package, or beside it in a checkout of the repository."""
    installed, checkout = (Path(__file__).parents[level] / "configs" for level in (1, 2))
    return installed if installed.is_dir() else checkout


def names(kind: str = "") -> list[str]:
    """The recipes, as in `quickstart`; or of the kind `models` or `accelerate`, as in `accelerate/ddp`."""
    here = folder()
    return sorted(file.relative_to(here).with_suffix("").as_posix() for file in (here / kind).glob(f"*{SUFFIX}"))


def presets() -> list[str]:
    """The names that `model.preset` may have."""
    return [name.removeprefix(f"{MODELS}/") for name in names(MODELS)]


def find(name_or_path: str | Path) -> Path:
    """A path that exists and is no folder, or else the file of ours with that name."""
    path = Path(name_or_path)
    return path if path.exists() and not path.is_dir() else named(str(name_or_path))


def named(name: str) -> Path:
    """The file of ours with that name: `quickstart`, `models/tiny` or `accelerate/ddp`."""
    return _one_of([*names(), *names(MODELS), *names(LAUNCHERS)], name, "recipe")


def preset(name: str) -> dict[str, Any]:
    """The keys of `configs/models/NAME.yaml`: a size of the model."""
    file = _one_of(presets(), name, "preset", MODELS)
    keys: dict[str, Any] = yaml12.load(file.read_text(encoding="utf-8"))
    return keys


def describe(name: str) -> Shipped:
    """What a recipe says about itself: its first sentence, and what stands after `Needs:` and `Reaches:`."""
    path = named(name)
    lines = path.read_text(encoding="utf-8").splitlines()
    header = "\n".join(line.removeprefix("#").strip() for line in lines[: _length_of_header(lines)])
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n|\n(?=[A-Z]\w+: )", header)]
    said = {key: text for key, colon, text in (paragraph.partition(": ") for paragraph in paragraphs) if colon}
    return Shipped(name, path, paragraphs[0], said.get("Needs", ""), said.get("Reaches", ""))


def _length_of_header(lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))


def _one_of(known: list[str], name: str, what: str, kind: str = "") -> Path:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0)
        raise FileNotFoundError(
            f"there is no {what} {name!r}; did you mean {near[0]!r}? `hf-vanilla recipes` lists what there is"
        )
    return folder() / kind / f"{name}{SUFFIX}"
