"""Which words or characters of a text its tokens stand for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from transformers import PreTrainedTokenizerFast

from .translator import Source

Unit = Literal["word", "character"]
"""What the indexes of an alignment count: words, separated by white space, or characters, white space included."""

Span = tuple[int, int]
"""The index of the first character, and the index after the last."""

NO_TEXT = (0, 0)


@dataclass(frozen=True)
class Membership:
    """
    Which tokens overlap which units of a text.

    Args:
        tokens: Indexes of tokens, in ascending order; as often as the token has units.
        units: The unit to each of these.
        number: How many units the text has.
        inside: For each token, whether it overlaps a unit. <eos>, separators and white space do not.
    """

    tokens: np.ndarray
    units: np.ndarray
    number: int
    inside: np.ndarray


def units_of(text: str, unit: Unit) -> list[Span]:
    if unit == "character":
        return [(index, index + 1) for index in range(len(text))]
    return [found.span() for found in re.finditer(r"\S+", text)]


def unit_for(texts: Sequence[str]) -> Unit:
    """Characters, if most texts have no white space: single words, dates, or Chinese."""
    return "character" if 2 * sum(len(text.split()) > 1 for text in texts) < len(texts) else "word"


def line_of(source: Source) -> str:
    """The parts of a source as one text, as in a file: indexes of words and characters run through all of it."""
    return "\t".join(source)


def members_of_source(tokenizer: PreTrainedTokenizerFast, source: Source, ids: Sequence[int], unit: Unit) -> Membership:
    """
    Args:
        ids: What the model reads: the parts, each followed by a separator or <eos>. There may be more in front of the
            first part, a prefix; it belongs to no unit.
    """
    return membership(source_spans(tokenizer, source, ids), line_of(source), unit)


def source_spans(tokenizer: PreTrainedTokenizerFast, source: Source, ids: Sequence[int]) -> list[Span]:
    """Where in `line_of(source)` each token stands. Tokens of a prefix end before its first character."""
    ends = [index for index, token in enumerate(ids) if token in (tokenizer.sep_token_id, tokenizer.eos_token_id)]
    spans = [NO_TEXT] * len(ids)
    start = position = 0
    for part, end in zip(source, ends, strict=True):
        of_part = spans_of(tokenizer, part, ids[start:end])
        spans[start:end] = [(first + position, last + position) for first, last in of_part]
        start, position = end + 1, position + len(part) + 1
    return spans


def members_of_target(tokenizer: PreTrainedTokenizerFast, target: str, ids: Sequence[int], unit: Unit) -> Membership:
    """
    Args:
        ids: Without <eos>.
    """
    return membership(spans_of(tokenizer, target, ids), target, unit)


def spans_of(tokenizer: PreTrainedTokenizerFast, text: str, ids: Sequence[int]) -> list[Span]:
    """Where in `text` each token stands. White space in front of a word can be part of its first token."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if encoded["input_ids"] != list(ids):
        return _spans_by_decoding(tokenizer, text, ids)
    spans = [(first, last) for first, last in encoded["offset_mapping"]]
    if spans and not text[0].isspace() and not tokenizer.decode(ids[:1]).strip():
        spans[0] = NO_TEXT  # a space that the tokenizer has put in front; it says that this is the first character
    return spans


def _spans_by_decoding(tokenizer: PreTrainedTokenizerFast, text: str, ids: Sequence[int]) -> list[Span]:
    """
    For ids that are not those of the text alone: a model found them, or they are symbols, or a prefix is in front.

    Counted from the end of the text, because of the prefix.
    """
    spans, start = [], 0
    for number in range(1, len(ids) + 1):
        decoded = tokenizer.decode(list(ids[:number]), skip_special_tokens=True)
        whole = len(decoded.rstrip("\ufffd"))  # what follows are the first bytes of a character
        spans.append((start, max(start, min(whole + 1, len(decoded)))))
        start = max(start, whole)
    surplus = start - len(text)
    return [(first - surplus, last - surplus) for first, last in spans]


def membership(spans: Sequence[Span], text: str, unit: Unit) -> Membership:
    units = units_of(text, unit)
    filled = [index for index, (first, last) in enumerate(units) if not text[first:last].isspace()]
    return overlaps(spans, units, filled)


def overlaps(spans: Sequence[Span], units: Sequence[Span], filled: Sequence[int] | None = None) -> Membership:
    """
    Args:
        units: In the order of the text; none overlaps another.
        filled: Which of them count, if not all.
    """
    counted = np.arange(len(units)) if filled is None else np.array(filled, np.int64)
    unit_firsts, unit_lasts = np.array(units, np.int64).reshape(-1, 2)[counted].T
    firsts, lasts = np.array(spans, np.int64).reshape(-1, 2).T
    begin = unit_lasts.searchsorted(firsts, "right")  # the first unit that ends after the token begins
    numbers = np.where(lasts > firsts, np.maximum(unit_firsts.searchsorted(lasts, "left") - begin, 0), 0)
    tokens = np.repeat(np.arange(len(spans)), numbers)
    of_token = np.arange(len(tokens)) - np.repeat(numbers.cumsum() - numbers, numbers)
    return Membership(tokens, counted[begin[tokens] + of_token], len(units), numbers > 0)
