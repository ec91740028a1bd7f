"""Tokens as one can read them: by the characters of the text that they stand for, not by the vocabulary's spelling."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from transformers import PreTrainedTokenizerFast

from ..inference.translator import Source
from ..inference.units import NO_TEXT, Span, line_of, source_spans, spans_of, units_of

SPACE = "␣"


@dataclass(frozen=True)
class Token:
    """
    Args:
        text: What it stands for. Without the white space in front, but for a token that is nothing else.
        is_special: Not of the text: <s>, </s>, separators, tags, and prefixes.
        has_space: White space stands in front, in the text and in the token.
        piece: Of several tokens of the same character, such as its bytes, which one this is, from 1; else 0.
        pieces: How many these are.
        word: The index of its word in the text, None without one.
    """

    text: str
    is_special: bool = False
    has_space: bool = False
    piece: int = 0
    pieces: int = 0
    word: int | None = None

    def __str__(self) -> str:
        return f"{self.text} {self.piece}/{self.pieces}" if self.piece else self.text


def source_tokens(tokenizer: PreTrainedTokenizerFast, source: Source, ids: Sequence[int]) -> list[Token]:
    """
    Args:
        source: Its parts.
        ids: What the model reads: also the prefix, separators and <eos>.
    """
    return tokens_of(tokenizer, line_of(source), ids, source_spans(tokenizer, source, ids))


def target_tokens(tokenizer: PreTrainedTokenizerFast, target: str, ids: Sequence[int]) -> list[Token]:
    """
    Args:
        ids: With <eos>, or without if the target has not come to its end.
    """
    text = [token for token in ids if token != tokenizer.eos_token_id]
    spans = iter(spans_of(tokenizer, target, text))
    each = [NO_TEXT if token == tokenizer.eos_token_id else next(spans) for token in ids]
    return tokens_of(tokenizer, target, ids, each)


def tokens_of(tokenizer: PreTrainedTokenizerFast, text: str, ids: Sequence[int], spans: Sequence[Span]) -> list[Token]:
    pieces = pieces_of(text, spans)
    words = [(first, last) for first, last in units_of(text, "word")]
    found = []
    for token, (first, last), (piece, number) in zip(ids, spans, pieces, strict=True):
        covered = with_accents(text, max(0, first), max(0, last))
        shown = covered.strip()
        if not covered:
            found.append(nameless(tokenizer, token))
        elif not shown:
            found.append(Token(SPACE * len(covered)))
        else:
            start = last - len(covered[: last - first].lstrip())
            word = next(index for index, (begin, end) in enumerate(words) if begin <= start < end)
            found.append(Token(shown, False, covered[0].isspace(), piece, number, word))
    return found


def pieces_of(text: str, spans: Sequence[Span]) -> list[tuple[int, int]]:
    """For each token its number among those that share a character, and how many these are; zeros if it shares none."""
    shares = [0]
    for (_, last), (first, end) in pairwise(spans):
        shares.append(shares[-1] + (0 if first < last and end > 0 and text[first:last].strip() else 1))
    found: list[tuple[int, int]] = []
    for _, group in groupby(shares[: len(spans)]):
        number = len(list(group))
        found += [(0, 0)] if number == 1 else [(piece, number) for piece in range(1, number + 1)]
    return found


def with_accents(text: str, first: int, last: int) -> str:
    """The characters, with accents that the text has as characters of their own, and the tokenizer has not."""
    while first < last < len(text) and unicodedata.combining(text[last]):
        last += 1
    return text[first:last]


def nameless(tokenizer: PreTrainedTokenizerFast, token: int) -> Token:
    """A token that stands for no character of the text: a special one, one of a prefix, or a space put in front."""
    name = str(tokenizer.convert_ids_to_tokens(token))
    if token in tokenizer.all_special_ids:
        return Token(name, is_special=True)
    decoded = tokenizer.decode([token])
    return Token(decoded.strip(), is_special=True) if decoded.strip() else Token(SPACE)


def members_of_words(tokens: Sequence[Token]) -> np.ndarray:
    """For each token an index: the same for the tokens of a word, one of its own for each other."""
    starts = [
        index == 0 or token.word is None or token.word != tokens[index - 1].word for index, token in enumerate(tokens)
    ]
    return np.cumsum(starts) - 1
