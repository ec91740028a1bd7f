"""
Forced beginnings of targets, word for word: "Mann" must not become "Mannschaft".

A word is a run of letters, digits and marks. Where a beginning ends in one, the first token that the search is free to
choose must not begin with another: the word ends there, and a space, punctuation or the end of the sentence may follow.
Behind punctuation anything may. Chinese, Japanese and other scripts do not mark where words end, so behind their
characters anything may follow, too, and they themselves may follow anything. A token of single bytes, which may be the
beginning of a letter, counts as a letter.

In most vocabularies the space belongs to the word behind it. There a beginning that ends in a space is forced without
it, and what follows has to begin with one, as in training.

What a token puts behind a text is asked of the tokenizer's decoder, so this holds for any kind of tokenizer.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from ..data.tokenizer import Encoder

WITHOUT_SPACES = re.compile(
    "(?:HALFWIDTH )?(CJK|BOPOMOFO|HIRAGANA|IDEOGRAPHIC|KANGXI|KATAKANA|KHMER|LAO|MYANMAR|TAI|THAI|TIBETAN|YI)\\b"
)
"""How the names of characters begin in whose scripts no space stands between words."""
ANCHOR = "a"  # a word, for tokens to be decoded behind it
INCOMPLETE = "\ufffd"  # some bytes of a character


class End(Enum):
    """How a beginning ends."""

    OPEN = "anything may follow"
    WORD = "no letter, digit or mark may follow"
    SPACE = "a space has to follow"


@dataclass(frozen=True)
class Beginning:
    token_ids: tuple[int, ...] = ()
    end: End = End.OPEN


class Beginnings:
    """Texts to beginnings, and to the tokens that must not follow them."""

    def __init__(self, encoder: Encoder):
        self.encoder = encoder

    def of(self, texts: Sequence[str]) -> list[Beginning]:
        """An empty text, or one of spaces, forces nothing."""
        texts = [text if text.strip(" ") else "" for text in texts]
        forced = [text.rstrip(" ") if text and self._words_bring_their_space else text for text in texts]
        filled = [text for text in forced if text]
        encoded = iter(self.encoder.targets(filled) if filled else [])
        ids = [tuple(next(encoded)[:-1]) if text else () for text in forced]  # without <eos>
        ends = [
            End.SPACE if text != whole else End.WORD if ends_in_word(text) else End.OPEN
            for text, whole in zip(forced, texts, strict=True)
        ]
        return [Beginning(own, end) for own, end in zip(ids, ends, strict=True)]

    def suppressed(self, end: End) -> list[int]:
        """Tokens that must not follow. The end of the sentence always may."""
        if end is End.OPEN:
            return []
        return [token for token, text in self._added.items() if not self._may_follow(token, text, end)]

    def _may_follow(self, token: int, text: str, end: End) -> bool:
        if text[:1] == " ":
            return True
        # Special tokens are taken out of the text: what comes behind one would lengthen the word.
        is_special = token in self.encoder.tokenizer.all_special_ids
        return end is End.WORD and not is_special and text[:1] != INCOMPLETE and not is_of_word(text[:1])

    @cached_property
    def _added(self) -> dict[int, str]:
        """For each token but the end of the sentence, the text that it puts behind a word."""
        tokenizer = self.encoder.tokenizer
        anchor = tokenizer(ANCHOR, add_special_tokens=False)["input_ids"]
        before = tokenizer.decode(anchor)
        tokens = sorted(set(tokenizer.get_vocab().values()) - {tokenizer.eos_token_id})
        decoded = tokenizer.batch_decode([[*anchor, token] for token in tokens])
        return {token: text[len(before) :] for token, text in zip(tokens, decoded, strict=True)}

    @cached_property
    def _words_bring_their_space(self) -> bool:
        return any(text[:1] == " " and text.strip(" ") for text in self._added.values())


def ends_in_word(text: str) -> bool:
    return bool(text) and is_of_word(text[-1])


def is_of_word(character: str) -> bool:
    """Whether it is a letter, a digit or a mark, of a script that puts spaces between words."""
    is_one = bool(character) and unicodedata.category(character)[0] in "LMN"
    return is_one and not WITHOUT_SPACES.match(unicodedata.name(character, ""))
