"""Which pairs an epoch has where corpora have weights: of small corpora the same pairs several times."""

from collections.abc import Sequence

import numpy as np

from .subword_dropout import hashed


class Mixture:
    """
    Epochs in which each corpus has the share of the pairs that its weight says.

    The corpus that is largest for its share has each of its pairs once in an epoch. The others are repeated, and where
    their share is no multiple of their size, an epoch ends with a part of the pairs and the next one begins with the
    rest. The order of the pairs is by a hash. So an epoch depends on the seed and its number only, and in the long run
    all pairs of a corpus are seen equally often.

    Args:
        sizes: How many pairs each corpus has. They follow each other in the dataset.
        weights: For each corpus, in any unit.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int):
        self.sizes = np.array(sizes)
        shares = np.array(weights) / sum(weights)
        self.wanted = np.rint(shares * (self.sizes / shares).max()).astype(np.int64)
        ends = self.sizes.cumsum()
        parts = [np.arange(end - size, end) for size, end in zip(self.sizes, ends, strict=True)]
        self.order = np.concatenate([part[np.argsort(hashed(seed, part), kind="stable")] for part in parts])

    def __len__(self) -> int:
        """The number of pairs in an epoch."""
        return int(self.wanted.sum())

    def rows(self, epochs: np.ndarray | int, places: np.ndarray) -> np.ndarray:
        """Which pairs of the dataset are at these places, of which an epoch has as many as pairs."""
        ends = self.wanted.cumsum()
        corpus = ends.searchsorted(places, "right")
        of_corpus = places - (ends - self.wanted)[corpus]
        turn = (epochs * self.wanted[corpus] + of_corpus) % self.sizes[corpus]
        return self.order[(self.sizes.cumsum() - self.sizes)[corpus] + turn]
