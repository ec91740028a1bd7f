"""Text to ids that are drawn anew for every epoch."""

import json
import random
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from transformers import PreTrainedTokenizerFast

MOST_WORDS = 100_000  # that are kept: with their segmentations, at most a kilobyte each and what these consist of


class SubwordDropout:
    """
    BPE-dropout (Provilkov et al., 2020): in training, each merge of a word is left out with probability `rate`.

    Every draw is a function of the seed it is asked with, so that a training can be repeated and resumed. A word is
    segmented in at most 256 ways, each drawn once and kept: what remains to do for a text is to look up. Words are
    numbers and segmentations parts of one array, so that this is done for many texts at once.
    """

    VARIANTS = 256

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rate: float):
        backend = tokenizer.backend_tokenizer
        model = json.loads(backend.to_str())["model"]
        if model["type"] != "BPE" or not model["merges"]:
            raise ValueError(f"BPE-dropout ({rate}) needs a tokenizer of byte pairs (kind: bpe)")
        self.normalize = backend.normalizer.normalize_str
        self.split = backend.pre_tokenizer.pre_tokenize_str
        self.ids: dict[str, int] = model["vocab"]
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        self.rate = rate
        self._forget()

    def __call__(self, texts: Sequence[str], seeds: np.ndarray) -> list[list[int]]:
        """The ids of each text, without <eos>, drawn by the seed of this text."""
        if len(self.numbers) > MOST_WORDS:
            self._forget()
        words = [self.words(text) for text in texts]
        counts = np.array([len(numbers) for numbers in words])
        variants = hashed(np.repeat(seeds, counts), ranges(np.zeros_like(counts), counts)) % np.uint64(self.VARIANTS)
        starts = self._starts(np.concatenate(words) * self.VARIANTS + variants.astype(np.int64))
        kept = np.frombuffer(self.kept, np.int32)
        lengths = kept[starts]
        ids = kept[ranges(starts + 1, lengths)]
        ends = np.append(0, lengths.cumsum())[counts.cumsum()]
        return [part.tolist() for part in np.split(ids, ends[:-1])]

    def segmentation(self, word: str, variant: int) -> list[int]:
        draws = random.Random(f"{variant} {word}")  # noqa: S311 -- not for secrets
        parts = list(word)
        while True:
            merges = [
                (self.ranks[pair], place)
                for place, pair in enumerate(pairwise(parts))
                if pair in self.ranks and draws.random() >= self.rate
            ]
            if not merges:
                return [self.ids[part] for part in parts]
            _, place = min(merges)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]

    def _forget(self) -> None:
        self.numbers: dict[str, int] = {}  # of words
        self.words = lru_cache(maxsize=MOST_WORDS)(self._words)
        self.kept = array("i", [0])  # segmentations: each is the number of its ids, then these
        self.places = np.zeros(0, np.int32)  # where in `kept` the variants of the words start; 0: not drawn yet

    def _words(self, text: str) -> np.ndarray:
        words = (word for word, _ in self.split(self.normalize(text)))
        return np.array([self.numbers.setdefault(word, len(self.numbers)) for word in words], np.int64)

    def _starts(self, variants: np.ndarray) -> np.ndarray:
        """Where the segmentations start, of which those that are missing are drawn."""
        size = len(self.numbers) * self.VARIANTS
        if len(self.places) < size:
            self.places = np.append(self.places, np.zeros(size, np.int32))
        missing = np.unique(variants[self.places[variants] == 0])
        words = list(self.numbers) if len(missing) else []
        for variant in missing.tolist():
            ids = self.segmentation(words[variant // self.VARIANTS], variant % self.VARIANTS)
            self.places[variant] = len(self.kept)
            self.kept.extend([len(ids), *ids])
        return self.places[variants]


def hashed(*numbers: np.ndarray | int) -> np.ndarray:
    """Something like a random number for each tuple of numbers, always the same (SplitMix64, Steele et al., 2014)."""
    state = np.zeros(1, np.uint64)
    for number in numbers:
        state = (state ^ np.asarray(number).astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The numbers from each start on, as many as its length says, one after the other."""
    ends = lengths.cumsum()
    return np.repeat(starts + lengths - ends, lengths) + np.arange(ends[-1])
