"""The one attention picture of a model card: of a validation pair, with the map that is read as an alignment."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..inference.translator import Translator
from ..run_directory import ATTENTION
from .attention import Attention, attend_by
from .figure import MAX_TOKENS, draw_figure
from .looking import first_map
from .pairs import encoded_pairs

SOURCE_TOKENS = range(4, 21)  # as many show something and can still be read; <eos> is not counted
TRIED = 10  # sources, until the model finds a translation that can be drawn


def draw_attention(run: Path) -> Path | None:
    """
    Draw the first validation pair of a fitting length, with the translation of the run itself. Needs the extra `plots`.

    None if no pair can be drawn; then, as after an error, there is no picture: one of other weights would be wrong.
    """
    remove_pictures(run)
    translator = Translator.from_pretrained(run, dtype=torch.float32)
    attention = drawable(run, translator)
    if attention is None:
        return None
    first, _ = first_map(translator.model)
    return draw_figure(attention, run / ATTENTION[0], "cross", first.layer, first.head, first.row)


def remove_pictures(run: Path) -> None:
    for name in ATTENTION:
        (run / name).unlink(missing_ok=True)


def drawable(run: Path, translator: Translator) -> Attention | None:
    for tried, row in enumerate(fitting_rows(run)):
        if tried == TRIED:
            break
        attention = attend_by(translator, tuple(row["source"]), prefix=row.get("prefix", ""))
        if attention.target.strip() and len(attention.target_ids) <= MAX_TOKENS:
            return attention
    return None


def fitting_rows(run: Path) -> Iterator[dict[str, Any]]:
    """The validation pairs whose source has a fitting length, in their order."""
    pairs = encoded_pairs(run, "validation")
    for row in pairs or ():
        if len(row["source_ids"]) - 1 in SOURCE_TOKENS:
            yield row
