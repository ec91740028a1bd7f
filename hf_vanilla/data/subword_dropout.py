"""
BPE-dropout (Provilkov et al., 2020): a model that sees words in several segmentations learns more of their parts.

When a corpus is encoded, `Words` numbers its different words, segments each of them in several ways and writes these to
a file. In training `SubwordDropout` chooses one of the ways for each word of a text, by a hash of the seed, the epoch,
the example and the place in the text. So all processes, and a training that is resumed, find the same without the state
of a random number generator; and the lengths of all texts in an epoch, from which batches are made, take seconds for
millions of pairs, as nothing is segmented for them. Symbols, tags and special tokens have one way only.
"""

import json
import random
from array import array
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerFast

from .tokenizer import Piece

Word = str | tuple[int, ...]
"""A word of a text, or ids that stay as they are: a symbol, a tag or a special token."""

# A word has as many ways as it occurs in the corpus, within these limits. Also a rare one needs several: it comes again
# in each epoch. (Of a word of 8 letters, 64 ways at a rate of 0.1 are some 6 different ones.)
MIN_WAYS, MAX_WAYS = 8, 128
# Longer words, in bytes, are divided into their usual tokens, each of which is segmented like a word: text without
# spaces would have nearly as many different "words" as sentences. (Merges across these tokens are then not possible.)
MAX_WORD_LENGTH = 32


class Words:
    """The different words of a corpus, numbered in the order in which they are found."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rate: float):
        backend = tokenizer.backend_tokenizer
        model = json.loads(backend.to_str())["model"]
        if model["type"] != "BPE" or not model["merges"]:
            raise ValueError(f"BPE-dropout ({rate}) needs a tokenizer of byte pairs (kind: bpe)")
        self.normalize = backend.normalizer.normalize_str
        self.split = backend.pre_tokenizer.pre_tokenize_str
        self.tokenize = backend.model.tokenize
        self.ids: dict[str, int] = model["vocab"]
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        self.rate = rate
        self.numbers: dict[Word, int] = {}
        self.counts = array("q")

    def of(self, pieces: Iterable[Piece]) -> list[int]:
        """Count the words of a text, in pieces as `Encoder` makes them, and give their numbers."""
        return [
            self._number(word)
            for piece in pieces
            for word in (self.words(piece) if isinstance(piece, str) else [tuple(piece)])
        ]

    def write(self, file: Path) -> None:
        """Write the ways of all words: one block of an Arrow file, so that it can be memory-mapped as three arrays."""
        ends_of_words, ends_of_ways, ids = array("i", [0]), array("i", [0]), array("i")
        for ways in self._ways_of_all():
            for way in ways:
                ids.extend(way)
                ends_of_ways.append(len(ids))
            ends_of_words.append(len(ends_of_ways) - 1)
        column = pa.array(np.frombuffer(ids, np.int32))
        for ends in (ends_of_ways, ends_of_words):
            column = pa.ListArray.from_arrays(pa.array(np.frombuffer(ends, np.int32)), column)
        table = pa.table({"ways": column})
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)

    def segmentations(self, word: str, number: int) -> list[list[int]]:
        """
        Ways to segment a word, drawn by the word itself, so always the same.

        As in the paper: of all possible merges each is dropped with probability `rate`, and the best of the others is
        made. This is repeated until none is left.
        """
        draws = random.Random(word).random  # noqa: S311 -- not for secrets

        @cache
        def merged(parts: tuple[str, ...]) -> list[tuple[str, ...]]:
            """The parts after each merge that is possible, the best merge first."""
            pairs = enumerate(pairwise(parts))
            places = sorted((self.ranks[pair], place) for place, pair in pairs if pair in self.ranks)
            return [(*parts[:place], parts[place] + parts[place + 1], *parts[place + 2 :]) for _, place in places]

        def segmented() -> list[int]:
            parts = tuple(word)
            while True:
                for following in merged(parts):
                    if draws() >= self.rate:
                        parts = following
                        break
                else:
                    return [self.ids[part] for part in parts]

        return [segmented() for _ in range(number)]

    def words(self, text: str) -> Iterator[str]:
        """The words of a text as BPE sees them: a character for each byte, a space belongs to the word after it."""
        for word, _ in self.split(self.normalize(text)):
            if len(word) <= MAX_WORD_LENGTH:
                yield word
            else:
                yield from (token.value for token in self.tokenize(word))

    def _number(self, word: Word) -> int:
        number = self.numbers.setdefault(word, len(self.numbers))
        if number == len(self.counts):
            self.counts.append(0)
        self.counts[number] += 1
        return number

    def _ways_of_all(self) -> Iterator[list[list[int]]]:
        for word, count in zip(self.numbers, self.counts, strict=True):
            if isinstance(word, str):
                yield self.segmentations(word, min(max(count, MIN_WAYS), MAX_WAYS))
            else:
                yield [list(word)]


class SubwordDropout:
    """
    From texts, as numbers of words, to token ids or to their lengths, drawn by a seed for each text.

    Args:
        file: What `Words` has written. It is memory-mapped, so that all processes share one copy.
    """

    def __init__(self, file: Path):
        self.file = file
        with pa.memory_map(str(file)) as source:
            ways = pa.ipc.open_stream(source).read_all().column("ways").chunk(0)
        self.first_way = ways.offsets.to_numpy()  # of each word; the last is where those of the last word end
        self.first_id = ways.values.offsets.to_numpy()  # of each way, the same
        self.ids = ways.values.values.to_numpy()

    def __reduce__(self) -> tuple[type["SubwordDropout"], tuple[Path]]:
        """Pickle the path only: a worker of a DataLoader maps the file itself."""
        return SubwordDropout, (self.file,)

    def lengths(self, texts: pa.ListArray, seeds: np.ndarray) -> np.ndarray:
        """How many ids each of the texts has."""
        ways, starts = self._drawn(texts, seeds)
        return np.add.reduceat(self.first_id[ways + 1] - self.first_id[ways], starts)

    def __call__(self, texts: pa.ListArray, seeds: np.ndarray) -> list[list[int]]:
        """The ids of each of the texts, <eos> included."""
        ways, starts = self._drawn(texts, seeds)
        firsts = self.first_id[ways]
        lengths = self.first_id[ways + 1] - firsts
        ids = self.ids[ranges(firsts, lengths)]
        ends = np.add.reduceat(lengths, starts).cumsum()
        return [text.tolist() for text in np.split(ids, ends[:-1])]

    def _drawn(self, texts: pa.ListArray, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The way of each word of all texts, and where the words of each text start. (Each has at least <eos>.)"""
        offsets = texts.offsets.to_numpy()
        words = texts.values.to_numpy()[offsets[0] : offsets[-1]]
        starts, counts = offsets[:-1] - offsets[0], np.diff(offsets)
        places = ranges(np.zeros_like(counts), counts).astype(np.uint64)
        random_bits = hashed(np.repeat(seeds, counts) + places) >> np.uint64(32)
        first_way = self.first_way[words]
        number_of_ways = (self.first_way[words + 1] - first_way).astype(np.uint64)
        return first_way + (random_bits * number_of_ways >> np.uint64(32)).astype(np.int32), starts


def hashed(*numbers: np.ndarray | int) -> np.ndarray:
    """A hash of each tuple of numbers, as good as 64 random bits (SplitMix64, Steele et al., 2014)."""
    state = np.zeros(1, np.uint64)
    for number in numbers:
        state = state ^ np.asarray(number).astype(np.uint64)
        state += np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(30)
        state *= np.uint64(0xBF58476D1CE4E5B9)
        state ^= state >> np.uint64(27)
        state *= np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The numbers from each start on, as many as its length says, one after the other."""
    ends = lengths.cumsum()
    return np.repeat(starts + lengths - ends, lengths) + np.arange(ends[-1])
