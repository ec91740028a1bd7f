"""A `Translator` for the batcher: refuses what it would cut, and gives one line for a line."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..inference.lines import as_line
from ..inference.translator import Translator, well_formed
from .batcher import Found


class TextTooLongError(ValueError):
    """A line with more tokens than the model reads."""


class Engine:
    """
    Translates lines with any `Translator`.

    Args:
        prefix: What sources of this direction began with in the training.
        options: Those of `Translator.hypotheses`, for all requests.
    """

    def __init__(self, translator: Translator, prefix: str = "", **options: Any):
        self.translator = translator
        self.prefix = prefix
        self.options = options

    def __call__(self, lines: Sequence[str], number: int) -> list[Found]:
        lines = [well_formed(line) for line in lines]
        found: list[Found] = [refusal or [] for refusal in self._refusals(lines)]
        short = [place for place, refusal in enumerate(found) if not refusal]
        several = {"num_return_sequences": number} if number > 1 else {}
        options = self.options | several
        if number > self.options.get("num_beams", number):
            options["num_beams"] = number
        each = self.translator.hypotheses([lines[place] for place in short], prefix=self.prefix, **options)
        for place, hypotheses in zip(short, each, strict=True):
            found[place] = [replace(one, text=as_line(one.text)) for one in hypotheses]
        return found

    def _refusals(self, lines: Sequence[str]) -> list[TextTooLongError | None]:
        """A translation of the beginning alone would look like one of all."""
        limit = self.translator.max_source_length
        encoded = self.translator.encoder.sources([self.translator.columns_of(line, 1) for line in lines], self.prefix)
        return [
            TextTooLongError(f"a line has {len(ids):,} tokens, more than the limit of {limit:,}: shorten or split it")
            if len(ids) > limit
            else None
            for ids in encoded
        ]
