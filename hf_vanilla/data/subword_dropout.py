"""
BPE-dropout (Provilkov et al., 2020): in training a word is segmented in another way from time to time.

When a corpus is encoded, each of its different words is segmented in several ways, which are written to a file, and
texts are written as numbers of words. In training each word of a text takes one of its ways, by a hash of the seed, the
epoch, the example and the place in the text. So every process finds the same without a random number generator to save
or restore, and the lengths of a whole epoch are a matter of look-ups: seconds for millions of pairs.
"""

import json
import random
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerFast

EOS, SEPARATOR = 0, 1  # as words: so a text is nothing but words
# A word is segmented in as many ways as it occurs in the corpus, within these limits: a rare word needs several, as it
# comes again in each epoch.
MIN_WAYS, MAX_WAYS = 8, 128


class Words:
    """The different words of a corpus, numbered in order of their first occurrence, and the ways to segment them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rate: float):
        backend = tokenizer.backend_tokenizer
        model = json.loads(backend.to_str())["model"]
        if model["type"] != "BPE" or not model["merges"]:
            raise ValueError(f"BPE-dropout ({rate}) needs a tokenizer of byte pairs (kind: bpe)")
        self.normalize = backend.normalizer.normalize_str
        self.split = backend.pre_tokenizer.pre_tokenize_str
        self.ids: dict[str, int] = model["vocab"]
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        self.special_ids = {EOS: tokenizer.eos_token_id, SEPARATOR: tokenizer.sep_token_id}
        self.rate = rate
        self.numbers: dict[str, int] = {}
        self.counts = array("q")

    def of(self, parts: Sequence[str]) -> list[int]:
        """The numbers of all words of a text in several parts, as the encoder joins them. They are counted."""
        numbers = self._numbers(parts[0])
        for part in parts[1:]:
            numbers += [SEPARATOR, *self._numbers(part)]
        return [*numbers, EOS]

    def write(self, file: Path) -> None:
        """Write all segmentations of all words, in one block of an Arrow file, which can be used where it lies."""
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
        """Some ways to segment a word, always the same: each merge is left out with probability `rate`."""
        draws = random.Random(word).random  # noqa: S311 -- not for secrets

        @cache
        def merged(parts: tuple[str, ...]) -> list[tuple[str, ...]]:
            """What each possible merge makes of the parts, in the order in which BPE prefers them."""
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

    def _numbers(self, text: str) -> list[int]:
        numbers = []
        for word, _ in self.split(self.normalize(text)):
            number = self.numbers.setdefault(word, len(self.numbers))
            if number == len(self.counts):
                self.counts.append(0)
            self.counts[number] += 1
            numbers.append(number + len(self.special_ids))
        return numbers

    def _ways_of_all(self) -> Iterator[list[list[int]]]:
        for special in (EOS, SEPARATOR):
            yield [[self.special_ids[special]]]
        for word, count in zip(self.numbers, self.counts, strict=True):
            yield self.segmentations(word, min(max(count, MIN_WAYS), MAX_WAYS))


class SubwordDropout:
    """
    Texts of numbered words to lengths or ids, drawn by a seed for each text.

    Args:
        file: The segmentations that `Words` has written. They are mapped into memory, which all processes share.
    """

    def __init__(self, file: Path):
        self.file = file
        with pa.memory_map(str(file)) as source:
            ways = pa.ipc.open_stream(source).read_all().column("ways").chunk(0)
        self.first_way = ways.offsets.to_numpy()  # of each word; the last is where those of the last word end
        self.first_id = ways.values.offsets.to_numpy()  # of each way, the same
        self.ids = ways.values.values.to_numpy()

    def __reduce__(self) -> tuple[type["SubwordDropout"], tuple[Path]]:
        """Processes that load data map the file themselves."""
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
        """The way that each word of all texts takes, and where each text starts. No text is empty: each has <eos>."""
        offsets = texts.offsets.to_numpy()
        words = texts.values.to_numpy()[offsets[0] : offsets[-1]]
        starts, counts = offsets[:-1] - offsets[0], np.diff(offsets)
        places = ranges(np.zeros_like(counts), counts).astype(np.uint64)
        random_bits = hashed(np.repeat(seeds, counts) + places) >> np.uint64(32)
        first_way = self.first_way[words]
        number_of_ways = (self.first_way[words + 1] - first_way).astype(np.uint64)
        return first_way + (random_bits * number_of_ways >> np.uint64(32)).astype(np.int32), starts


def hashed(*numbers: np.ndarray | int) -> np.ndarray:
    """Something like a random number for each tuple of numbers, always the same (SplitMix64, Steele et al., 2014)."""
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
