"""
Which attention map of a model is an alignment.

That differs from model to model: often the last layer but one, sometimes a single head. No data have links to compare
with. So the maps are compared with those of a small statistical aligner, which is trained for this: it is often
wrong, but not where attention is, and so the best map agrees with it most.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from .alignments import (
    Aligner,
    AlignmentSettings,
    AttentionMap,
    EncodedPair,
    Link,
    Row,
    between_units,
    cross_attentions,
    error_rate,
    links_of,
)
from .translator import Source
from .units import Unit, line_of, unit_for, units_of
from .word_statistics import Sentence, links_in_both_directions

TextPair = tuple[Source, str]

ROWS: tuple[Row, Row] = ("output", "input")

MAX_CELLS = 4_000_000
"""Pairs of a source and a target word that are counted: about a second for a direction, and 400 MB."""


@dataclass(frozen=True)
class AlignmentChoice:
    """
    Args:
        error: The alignment error rate against the statistical aligner: its links in both directions are sure, those in
            one are possible.
        pairs: How many pairs were compared.
    """

    settings: AlignmentSettings
    error: float
    pairs: int

    def as_dict(self) -> dict[str, Any]:
        """For the generation config."""
        return {**self.settings.as_dict(), "error": round(self.error, 4), "pairs": self.pairs}


def choose_alignment(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    sample: Sequence[TextPair],
    training: Sequence[TextPair],
    *,
    source_ids: Sequence[Sequence[int]] | None = None,
    max_cells: int = MAX_CELLS,
) -> AlignmentChoice:
    """
    The same for the same arguments, whatever else the process does.

    Args:
        sample: Pairs whose maps are compared.
        training: More pairs for the statistical aligner. The first ones, as many as `max_cells` allows, are used.
        source_ids: What the model reads of the sample, if these are not just the encoded sources.
    """
    units = unit_for([part for source, _ in sample for part in source]), unit_for([target for _, target in sample])
    pairs = list(_in_words([*sample, *training], units, max_cells))
    sample = sample[: len(pairs)]
    sure, possible = links_in_both_directions(pairs, len(sample))
    aligner = Aligner(model, tokenizer, AlignmentSettings(AttentionMap(0), *units))
    sources, targets = zip(*sample, strict=True)
    encoded = aligner.encode(sources, targets, None if source_ids is None else source_ids[: len(sample)])
    errors = errors_of_maps(model, encoded, sure, possible)
    best = min(errors, key=lambda attention: errors[attention])
    return AlignmentChoice(AlignmentSettings(best, *units), errors[best], len(sample))


def errors_of_maps(
    model: PreTrainedModel, pairs: Sequence[EncodedPair], sure: Sequence[set[Link]], possible: Sequence[set[Link]]
) -> dict[AttentionMap, float]:
    """The alignment error rate of every attention map of the decoder, those that are simpler to say first."""
    layers = range(model.config.decoder_layers)
    heads = (None, *range(model.config.num_heads))
    maps = [AttentionMap(layer, head, row) for head, row, layer in product(heads, ROWS, layers)]
    found: dict[AttentionMap, list[set[Link]]] = {attention: [set() for _ in pairs] for attention in maps}
    for pair, attentions in cross_attentions(model, pairs, layers):
        all_maps = np.stack([attention.of(attentions[attention.layer]) for attention in maps])
        weights, _ = between_units(all_maps, pair.sources, pair.targets)
        for attention, of_map in zip(maps, weights, strict=True):
            found[attention][pair.index] = set(links_of(of_map))
    return {attention: error_rate(links, sure, possible) for attention, links in found.items()}


def _in_words(
    pairs: Sequence[TextPair], units: tuple[Unit, Unit], max_cells: int
) -> Iterator[tuple[Sentence, Sentence]]:
    cells = 0
    for source, target in pairs:
        words = _units_in(line_of(source), units[0]), _units_in(target, units[1])
        cells += (1 + len(words[0])) * len(words[1])
        if cells > max_cells:
            return
        yield words


def _units_in(text: str, unit: Unit) -> Sentence:
    return [text[first:last] for first, last in units_of(text, unit)]
