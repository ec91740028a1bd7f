"""Which words or characters of a text its tokens stand for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from transformers import PreTrainedTokenizerFast

from .translator import Source

Unit = Literal["word", "character"]
"""What indexes of an alignment count: words, separated by white space, or characters, white space included."""

Span = tuple[int, int]
"""The first character, and the first one after the last."""


@dataclass(frozen=True)
class Membership:
    """
    Which tokens overlap which units of a text: pairs of a token's and a unit's index, sorted by token.

    Args:
        inside: For each token, whether it overlaps any unit. The sentence end does not, nor a separator or white space.
    """

    tokens: np.ndarray
    units: np.ndarray
    number: int
    inside: np.ndarray


def units_of(text: str, unit: Unit) -> list[Span]:
    if unit == "character":
        return [(index, index + 1) for index in range(len(text))]
    return [found.span() for found in re.finditer(r"\S+", text)]


def line_of(source: Source) -> str:
    """The parts of a source as one text, as in a file: indexes of words and characters run through all of it."""
    return "\t".join(source)


def members_of_source(tokenizer: PreTrainedTokenizerFast, source: Source, ids: Sequence[int], unit: Unit) -> Membership:
    """
    Args:
        ids: Those that the model reads: the parts, each followed by a separator or the sentence end. In front of the
            first part there may be more, a prefix; it belongs to no unit.
    """
    spans: list[Span] = []
    start = position = 0
    for part in source:
        end = next((i for i in range(start, len(ids)) if _ends_part(tokenizer, ids[i])), len(ids))
        spans += [(first + position, last + position) for first, last in spans_of(tokenizer, part, ids[start:end])]
        spans.append((0, 0))
        start, position = end + 1, position + len(part) + 1
    spans = [*spans, *[(0, 0)] * len(ids)][: len(ids)]
    return membership(spans, units_of(line_of(source), unit))


def members_of_target(tokenizer: PreTrainedTokenizerFast, text: str, ids: Sequence[int], unit: Unit) -> Membership:
    return membership(spans_of(tokenizer, text, ids), units_of(text, unit))


def spans_of(tokenizer: PreTrainedTokenizerFast, text: str, ids: Sequence[int]) -> list[Span]:
    """Where in `text` each token stands. White space in front of a word can be part of its first token."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if encoded["input_ids"] == list(ids):
        return [(first, last) for first, last in encoded["offset_mapping"]]
    return _spans_by_decoding(tokenizer, text, ids)


def _spans_by_decoding(tokenizer: PreTrainedTokenizerFast, text: str, ids: Sequence[int]) -> list[Span]:
    """
    For what is not segmented as the tokenizer would: what a model has found, symbols, a text with a prefix.

    Positions are counted from the end, as a prefix is in front.
    """
    spans, start = [], 0
    for number in range(1, len(ids) + 1):
        decoded = tokenizer.decode(list(ids[:number]), skip_special_tokens=True)
        whole = len(decoded.rstrip("\ufffd"))  # at the end: the first bytes of a character
        spans.append((start, max(start, min(whole + 1, len(decoded)))))
        start = max(start, whole)
    extra = start - len(text)
    return [(first - extra, last - extra) for first, last in spans]


def _ends_part(tokenizer: PreTrainedTokenizerFast, token: int) -> bool:
    return token in (tokenizer.sep_token_id, tokenizer.eos_token_id)


def membership(spans: Sequence[Span], units: Sequence[Span]) -> Membership:
    starts, ends = np.array(units, np.int64).reshape(-1, 2).T
    firsts, lasts = np.array(spans, np.int64).reshape(-1, 2).T
    first = ends.searchsorted(firsts, "right")  # the first unit that ends after the token's start
    numbers = np.maximum(starts.searchsorted(lasts, "left") - first, 0) * (lasts > firsts)
    tokens = np.repeat(np.arange(len(spans)), numbers)
    within = np.arange(len(tokens)) - np.repeat(numbers.cumsum() - numbers, numbers)
    return Membership(tokens, first[tokens] + within, len(units), numbers > 0)
