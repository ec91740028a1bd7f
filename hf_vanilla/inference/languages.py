"""The names of the two languages of a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..manifest import MANIFEST
from ..run_directory import CARD, RECIPE

UNKNOWN_SOURCE, UNKNOWN_TARGET = "auto", "xx"


@dataclass(frozen=True)
class Languages:
    """Codes such as `en`; `auto` and `xx` where nobody has said them."""

    source: str = UNKNOWN_SOURCE
    target: str = UNKNOWN_TARGET


def languages_of(folder: Path, source: str | None = None, target: str | None = None) -> Languages:
    """What is given, else what the recipe of a run, or the manifest of an export says, else the model card."""
    section = _mapping(_mapping(_yaml(folder / RECIPE)).get("data"))
    of_export = _mapping(_mapping(_yaml(folder / MANIFEST)).get("languages"))
    card = _mapping(_front_matter(folder / CARD)).get("language")
    of_card = card if isinstance(card, list) and len(card) == 2 else [None, None]
    choices = (
        (source, section.get("source_language"), of_export.get("source"), of_card[0], UNKNOWN_SOURCE),
        (target, section.get("target_language"), of_export.get("target"), of_card[1], UNKNOWN_TARGET),
    )
    return Languages(*(next(name for name in each if isinstance(name, str) and name) for each in choices))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _yaml(file: Path) -> Any:
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):  # not a run of ours
        return None


def _front_matter(file: Path) -> Any:
    try:
        _, text, _ = file.read_text(encoding="utf-8").split("---\n", 2)
        return yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
