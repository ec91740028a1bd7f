"""Which heads attend alike."""

from typing import Any

import numpy as np

from .masking import Head
from .reading import KINDS, Kind, Maps


class Divergences:
    """
    How different the heads of a kind are: the Jensen-Shannon divergence of their weights, mean over all queries, in
    bits. 0: they always attend alike. 1: never to the same token.
    """

    def __init__(self) -> None:
        self._sums: dict[Kind, Any] = {}
        self._queries: dict[Kind, int] = {}
        self._heads: dict[Kind, list[Head]] = {}

    def add(self, maps: Maps) -> None:
        for kind in KINDS:
            weights = maps.of(kind)
            if len(weights):
                self._heads[kind] = [Head(kind, *place) for place in np.ndindex(*weights.shape[:2])]
                found = divergences_of(weights.reshape(-1, *weights.shape[2:]))
                self._sums[kind] = self._sums.get(kind, 0) + found
                self._queries[kind] = self._queries.get(kind, 0) + weights.shape[2]

    def of(self, kind: Kind) -> np.ndarray:
        """(all heads, all heads), those of the first layer first."""
        mean: np.ndarray = self._sums[kind] / self._queries[kind]
        return mean

    def nearest(self) -> dict[Head, tuple[Head, float]]:
        """For each head the one that attends most like it, and how different it is. A head that is alone has none."""
        found = {}
        for kind, heads in self._heads.items():
            if len(heads) > 1:
                others = self.of(kind) + np.diag(np.full(len(heads), np.inf))
                for head, row in zip(heads, others, strict=True):
                    found[head] = heads[int(row.argmin())], float(row.min())
        return found


def divergences_of(weights: np.ndarray) -> np.ndarray:
    """Summed over the queries: (heads, queries, keys) -> (heads, heads)."""
    own = negative_entropy(weights)
    rows = []
    for head, of_head in enumerate(weights):
        middle = negative_entropy((weights + of_head) / 2)
        rows.append(((own + own[head]) / 2 - middle).sum(-1))
    return np.stack(rows).clip(min=0)  # rounding can give a little less than 0


def negative_entropy(weights: np.ndarray) -> np.ndarray:
    """In bits, of the last axis."""
    terms: np.ndarray = (weights * np.log2(weights, where=weights > 0, out=np.zeros_like(weights))).sum(-1)
    return terms
