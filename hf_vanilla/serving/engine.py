"""A `Translator` for the batcher: refuses what it would cut, and gives one line for a line."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..inference.lines import as_line
from ..inference.torch_engine import TorchEngine
from ..inference.translator import Hypothesis, Translator, well_formed
from .batcher import Found, Wanted
from .picture import Picture, pictures_of


class TextTooLongError(ValueError):
    """A line with more tokens than the model reads."""


@dataclass(frozen=True)
class Drawn(Hypothesis):
    """A translation that says where it looked."""

    picture: Picture | None = None


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

    def __call__(self, lines: Sequence[str], wanted: Wanted) -> list[Found]:
        lines = [well_formed(line) for line in lines]
        found: list[Found] = [refusal or [] for refusal in self._refusals(lines)]
        short = [place for place, refusal in enumerate(found) if not refusal]
        several = {"num_return_sequences": wanted.number} if wanted.number > 1 else {}
        options = self.options | several
        if wanted.number > self.options.get("num_beams", wanted.number):
            options["num_beams"] = wanted.number
        texts = [lines[place] for place in short]
        each = self.translator.hypotheses(texts, prefix=self.prefix, **options)
        has_attention = isinstance(self.translator.engine, TorchEngine)  # which an export does not show
        if wanted.has_attention and has_attention:
            each = self._drawn(texts, each)
        for place, hypotheses in zip(short, each, strict=True):
            found[place] = [replace(one, text=as_line(one.text)) for one in hypotheses]
        return found

    def _drawn(self, lines: Sequence[str], found: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        all_found = [hypothesis for hypotheses in found for hypothesis in hypotheses]
        sources = [self.translator.columns_of(line, 1) for line, each in zip(lines, found, strict=True) for _ in each]
        pictures = iter(pictures_of(self.translator, sources, self.prefix, all_found))
        return [[Drawn(**vars(one), picture=next(pictures)) for one in hypotheses] for hypotheses in found]

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
