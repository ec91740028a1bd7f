"""
Validation pairs that are held out of the training corpora, chosen by a hash of their sources.

So the choice depends neither on the order of files and lines nor on chance. Pairs of the same source are all on one
side: the several targets of a source, and copies that differ in case or white space only. (A pair that another corpus
has the other way round, as for a model of both directions, has another source there.)
"""

import hashlib
import heapq
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .corpus import Corpus, Pair, read_pairs
from .errors import InvalidDataError

HASHES = 2**64


@dataclass(frozen=True)
class HoldOut:
    """
    Which sources of some corpora are held out: those with the smallest hashes.

    Args:
        amount: A share of the hashes (a float below 1), so that other pairs which are added later move no source from
            one side to the other; or how many different sources (an int), with all of their targets.
    """

    corpora: tuple[Corpus, ...]
    amount: float | int

    @cached_property
    def limit(self) -> int:
        """Sources whose hashes are below it are held out. Reads the corpora, for a share only their beginning."""
        return self._limit_of_number(self.amount) if isinstance(self.amount, int) else self._limit_of_share(self.amount)

    def _hashes(self) -> Iterator[int]:
        return (hash_of(pair.source) for pair in read_pairs(self.corpora))

    def _limit_of_number(self, number: int) -> int:
        smallest = smallest_of(self._hashes(), number + 1)
        if len(smallest) <= number:
            raise InvalidDataError(
                f"data.validation: {number} sources cannot be held out of the {len(smallest)} different ones in "
                "data.train: lower it"
            )
        return max(smallest)

    def _limit_of_share(self, share: float) -> int:
        limit = int(share * HASHES)
        sides = set()
        for hashed in self._hashes():
            sides.add(hashed < limit)
            if len(sides) == 2:
                return limit
        which = "all" if True in sides else "none"
        raise InvalidDataError(
            f"data.validation: a share of {share} holds out {which} of the pairs in data.train, which are too few: "
            "give a number of sources, as in validation: 500"
        )


@dataclass(frozen=True)
class Part(Corpus):
    """The pairs of a corpus that are held out, or those that are left to train on."""

    corpus: Corpus
    hold_out: HoldOut
    is_held_out: bool

    @property
    def parts(self) -> int:
        return self.corpus.parts

    @property
    def files(self) -> tuple[Path, ...]:
        return self.corpus.files

    @property
    def title(self) -> str:
        return self.corpus.title

    def _pairs(self) -> Iterator[Pair]:
        limit = self.hold_out.limit
        return (pair for pair in self.corpus if (hash_of(pair.source) < limit) == self.is_held_out)


def split(corpora: tuple[Corpus, ...], amount: float | int) -> tuple[tuple[Corpus, ...], tuple[Corpus, ...]]:
    """What is left of each corpus to train on, and what is held out of it."""
    hold_out = HoldOut(corpora, amount)

    def parts(is_held_out: bool) -> tuple[Corpus, ...]:
        return tuple(
            Part(corpus, hold_out, is_held_out, prefix=corpus.prefix, weight=corpus.weight, symbols=corpus.symbols)
            for corpus in corpora
        )

    return parts(False), parts(True)


def hash_of(source: Iterable[str]) -> int:
    """The same for texts that differ only in Unicode normalisation, case or white space."""
    text = "\n".join(" ".join(unicodedata.normalize("NFC", part).casefold().split()) for part in source)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def smallest_of(values: Iterable[int], number: int) -> set[int]:
    """The smallest `number` different values, or all if there are fewer. No more than these are kept in memory."""
    kept: set[int] = set()
    largest_first: list[int] = []  # their negatives, as a heap has the smallest first
    for value in values:
        if value in kept:
            continue
        if len(kept) < number:
            heapq.heappush(largest_first, -value)
        elif value < -largest_first[0]:
            kept.remove(-heapq.heapreplace(largest_first, -value))
        else:
            continue
        kept.add(value)
    return kept
