"""
What each attention head does on average, and the roles that the literature has names for.

A share is the mean, over the queries that can see such a token at all, of the attention that they pay to it. Queries
and keys are tokens, never padding. In the maps of the decoder a query is the position that predicts a target token; it
reads the token before it, so that "same" is the token that it reads.
"""

import math
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from .reading import KINDS, Kind, Maps

OFFSETS = (-2, -1, 0, 1, 2)
"""Positions of keys relative to the query's among which a head's own position is looked for."""

NEIGHBOURS = {"previous": -1, "same": 0, "next": 1}

STATISTICS = {
    "previous": "share of attention to the token before",
    "same": "share of attention to the token at the same position",
    "next": "share of attention to the token after",
    "first": "share of attention to the first token (of the decoder: the start token)",
    "sentence_end": "share of attention to the end of the sentence",
    "punctuation": "share of attention to punctuation",
    "rarest": "share of attention to the token of the sentence that was rarest in the training text",
    "rarest_peak": "share of queries whose largest weight is on that token",
    "rarest_chance": "the same, if the largest weight stood anywhere",
    "position": "the relative position, from -2 to 2, where the largest weight stands most often",
    "position_share": "share of queries whose largest weight stands there",
    "entropy": "of the weights, in nats",
    "entropy_share": "entropy divided by the logarithm of the number of keys that the query sees: 1 is uniform",
    "distance": "mean distance of what is attended to, in tokens",
    "confidence": "mean of the largest weight, the end of the sentence left out as query and as key",
}
"""The name of each statistic of a head, and what it is."""


@dataclass(frozen=True)
class Role:
    """
    What a head is called whose statistic is at least so large.

    Args:
        source: Where the threshold comes from.
    """

    name: str
    statistic: str
    at_least: float
    source: str


CLARK = "Clark et al. (2019), section 3"
VOITA = "Voita et al. (2019), section 5"

ROLES = (
    Role("previous token", "previous", 0.5, CLARK),
    Role("same token", "same", 0.5, f"as for neighbours in {CLARK}"),
    Role("next token", "next", 0.5, CLARK),
    Role("positional", "position_share", 0.9, VOITA),
    Role("first token", "first", 0.6, f"as for special tokens in {CLARK}"),
    Role("sentence end", "sentence_end", 0.6, CLARK),
    Role("punctuation", "punctuation", 0.6, f"as for special tokens in {CLARK}"),
    Role("rarest token", "rarest_peak", 0.5, f"our own; the head that is described in {VOITA} has 0.66"),
    Role("broad", "entropy", 3.8, CLARK),
    Role("uniform", "entropy_share", 0.98, "our own; equal weights have 1"),
)


def roles_of(values: Mapping[str, float]) -> list[Role]:
    """The roles of a head with these statistics; often none. What is not known (NaN) gives none."""
    return [role for role in ROLES if values.get(role.statistic, math.nan) >= role.at_least]


class Traits:
    """
    What statistics have to know of tokens.

    Args:
        counts: How often each token is in the training text, (N,), of sources and of targets; None if that is unknown.
        start: The token that the decoder starts with.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        start: int,
        counts: tuple[np.ndarray, np.ndarray] | None = None,
    ):
        self.tokenizer = tokenizer
        self.start = start
        self.eos = tokenizer.eos_token_id
        self.counts = counts
        self.special = np.array(tokenizer.all_special_ids)
        self._is_punctuation: dict[int, bool] = {}

    def punctuation(self, ids: np.ndarray) -> np.ndarray:
        """Whether all characters of a token are punctuation."""
        for token in set(ids.tolist()) - self._is_punctuation.keys():
            text = self.tokenizer.decode([token]).strip()
            self._is_punctuation[token] = is_punctuation(text) and token not in self.special
        return np.array([self._is_punctuation[token] for token in ids.tolist()], bool)

    def rarest(self, ids: np.ndarray, side: int) -> np.ndarray:
        """Which tokens of a text are the rarest of it; none if that is unknown. Special tokens are no text."""
        is_text = ~np.isin(ids, self.special)
        if self.counts is None or not is_text.any():
            return np.zeros(len(ids), bool)
        counts = self.counts[side][ids]
        rarest: np.ndarray = is_text & (counts == counts[is_text].min())
        return rarest


def is_punctuation(text: str) -> bool:
    return bool(text) and all(unicodedata.category(character).startswith("P") for character in text)


class HeadStatistics:
    """The statistics of all heads over as many pairs as are added."""

    def __init__(self, traits: Traits):
        self.traits = traits
        self._sums: dict[tuple[Kind, str], Any] = defaultdict(float)
        self._counts: dict[tuple[Kind, str], int] = defaultdict(int)

    def add(self, maps: Maps, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """The maps of a pair, and its ids as `maps_of` gets them."""
        source, target = np.array(source_ids), np.array(target_ids)
        read = np.array([self.traits.start, *target_ids[:-1]])
        tokens: dict[Kind, tuple[np.ndarray, np.ndarray]] = {
            "encoder": (source, source),
            "decoder": (read, target),
            "cross": (source, target),
        }
        for kind, (keys, queries) in tokens.items():
            weights = maps.of(kind)
            if not len(weights):
                continue
            rows = Rows(weights, self.traits, keys, queries, kind)
            for name, values in rows.values():
                self._sums[kind, name] += values.sum(-1, dtype=np.float64)
                self._counts[kind, name] += values.shape[-1]

    def of(self, kind: Kind) -> dict[str, np.ndarray]:
        """Each statistic of the heads: (layers, heads). NaN where nothing could be counted."""
        found: dict[str, np.ndarray] = {}
        sums = {name: total for (place, name), total in self._sums.items() if place == kind}
        if not sums:
            return {}
        size = next(iter(sums.values())).shape
        nothing = np.full(size, np.nan)
        of_offsets = np.stack([self._mean(kind, f"at {offset}", nothing) for offset in OFFSETS])
        for name in STATISTICS:
            found[name] = self._mean(kind, name, nothing)
        known = np.nan_to_num(of_offsets, nan=-1)
        found["position"] = np.array(OFFSETS)[known.argmax(0)].astype(float)
        found["position_share"] = known.max(0)
        return found

    def as_dict(self) -> dict[Kind, dict[str, np.ndarray]]:
        return {kind: values for kind in KINDS if (values := self.of(kind))}

    def _mean(self, kind: Kind, name: str, nothing: np.ndarray) -> np.ndarray:
        count = self._counts[kind, name]
        mean: np.ndarray = self._sums[kind, name] / count if count else nothing
        return mean


class Rows:
    """
    The values of one pair, for each statistic and each query that counts for it.

    Args:
        weights: (layers, heads, queries, keys).
        keys: Tokens that are attended to.
        queries: The token that each query stands for.
    """

    def __init__(self, weights: np.ndarray, traits: Traits, keys: np.ndarray, queries: np.ndarray, kind: Kind):
        self.weights, self.traits, self.keys, self.queries = weights, traits, keys, queries
        self.is_causal = kind == "decoder"
        self.is_end = keys == traits.eos
        if self.is_causal:
            self.is_end[0] = False  # the start token, which is </s> in models of fairseq
        self.counted = int(kind == "decoder")  # which of the two counts of tokens holds for the keys
        rows = np.arange(len(queries))
        self.visible = rows + 1 if self.is_causal else np.full(len(queries), len(keys))
        self.peaks = weights.argmax(-1)

    def values(self) -> Iterator[tuple[str, np.ndarray]]:
        """Names and values, (layers, heads, queries that count)."""
        for name, offset in NEIGHBOURS.items():
            if not (self.is_causal and offset > 0):
                yield name, self.weights.diagonal(offset, -2, -1)
        yield "first", self.weights[..., 0]
        yield from self._attended("sentence_end", self.is_end)
        yield from self._attended("punctuation", self.traits.punctuation(self.keys))
        yield from self._rarest(self.traits.rarest(self.keys, self.counted))
        yield from self._spread()
        yield from self._peaks()
        is_word = self.queries != self.traits.eos
        if is_word.any() and not self.is_end.all():
            yield "confidence", self.weights[:, :, is_word][..., ~self.is_end].max(-1)

    def _attended(self, name: str, is_one: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """The attention to these keys, of the queries that see one of them."""
        if is_one.any():
            yield name, self.weights[:, :, self._sees(is_one)][..., is_one].sum(-1)

    def _sees(self, is_one: np.ndarray) -> np.ndarray:
        return self.visible > is_one.argmax()

    def _rarest(self, is_rarest: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        yield from self._attended("rarest", is_rarest)
        if is_rarest.any():
            sees = self._sees(is_rarest)
            yield "rarest_peak", is_rarest[self.peaks[:, :, sees]]
            chance = is_rarest.cumsum()[self.visible[sees] - 1] / self.visible[sees]
            yield "rarest_chance", np.broadcast_to(chance, (*self.weights.shape[:2], len(chance)))

    def _spread(self) -> Iterator[tuple[str, np.ndarray]]:
        entropy = entropy_of(self.weights)
        yield "entropy", entropy
        chooses = self.visible > 1
        yield "entropy_share", entropy[:, :, chooses] / np.log(self.visible[chooses])
        distances = np.abs(np.arange(len(self.keys)) - np.arange(len(self.queries))[:, None])
        yield "distance", (self.weights * distances).sum(-1)

    def _peaks(self) -> Iterator[tuple[str, np.ndarray]]:
        rows = np.arange(len(self.queries))
        for offset in OFFSETS:
            has_one = (rows + offset >= 0) & (rows + offset < self.visible)
            yield f"at {offset}", (self.peaks == rows + offset)[:, :, has_one]


def entropy_of(weights: np.ndarray) -> np.ndarray:
    """In nats, of the last axis."""
    terms = weights * np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    entropy: np.ndarray = -terms.sum(-1)
    return entropy
