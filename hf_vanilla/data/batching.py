"""Lengths to batches that hold about the same number of tokens each."""

import heapq
import math
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache

import numpy as np
from torch.utils.data import Sampler

from .errors import InvalidDataError

NEARLY_FULL = 0.9  # of the budget
SPARE = 0.02  # of the batches, where lengths change from epoch to epoch

Key = tuple[int, int]
"""An epoch and an index: all that an example, with whatever is random about it, depends on."""


class TokenBudgetBatches(Sampler[list[Key]]):
    """
    Batches of keys whose padded tokens, on the longer side, are at most `max_tokens`.

    Examples of equal lengths are shuffled among each other and batches among each other, by the seed and the epoch
    alone. Each example is in one batch of each epoch, and every epoch has the same number of batches.

    The batches of one step of the optimiser, on several processes or accumulated on one, follow each other and are of
    the same size as far as possible. So however many processes share them, a step sees the same examples; and as the
    number of batches is a multiple of those of a step, no example comes twice. (Accelerate gives batch i * processes +
    rank to each rank.)

    Args:
        lengths: (N, 2), the lengths of source and target of every example, <eos> included; or a function from the
            epoch to them, if they change.
        max_tokens: The budget. An example longer than it cannot be in a batch.
        per_step: How many batches make a step: processes times accumulated batches.
        shuffle: False keeps batches in the order of their length.
    """

    # A sampler with an attribute `batch_size` would make accelerate drop all batches of another size.

    def __init__(
        self,
        lengths: np.ndarray | Callable[[int], np.ndarray],
        max_tokens: int,
        *,
        per_step: int = 1,
        seed: int = 0,
        shuffle: bool = True,
    ):
        # An epoch's are asked for several times, and take seconds where they depend on the epoch.
        self.lengths = lru_cache(maxsize=1)(lengths) if callable(lengths) else lengths
        self.max_tokens = max_tokens
        self.per_step = per_step
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self.number = self._number()

    def set_epoch(self, epoch: int) -> None:
        """Called by accelerate and Trainer at the start of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[list[Key]]:
        random = np.random.default_rng((self.seed, self.epoch))
        lengths = self._lengths(self.epoch)
        order = self._sorted(lengths, random)
        cuts = self._cuts(lengths[order])
        groups = np.arange(len(cuts)).reshape(-1, self.per_step)
        if self.shuffle:
            random.shuffle(groups)
        for batch in groups.flat:
            start, end = cuts[batch]
            yield [(self.epoch, index) for index in order[start:end].tolist()]

    @cached_property
    def padding(self) -> float:
        """The share of padding among the tokens of all batches, both sides together."""
        lengths = self._lengths(epoch=0)
        lengths = lengths[self._sorted(lengths, np.random.default_rng(0))]
        padded = sum((end - start) * lengths[start:end].max(axis=0).sum() for start, end in self._cuts(lengths))
        return 1 - float(lengths.sum() / padded)

    def _lengths(self, epoch: int) -> np.ndarray:
        return self.lengths(epoch) if callable(self.lengths) else self.lengths

    def _number(self) -> int:
        """As many batches as the lengths need, in whole steps; a few more if lengths change."""
        lengths = self._lengths(epoch=0)
        longest = int(lengths.max(initial=0))
        if longest > self.max_tokens:
            index = int(lengths.max(axis=1).argmax())
            raise InvalidDataError(
                f"example {index} has {longest} tokens, more than max_tokens ({self.max_tokens}) in a batch"
            )
        needed = len(self._filled(lengths[self._sorted(lengths, np.random.default_rng(0))], self.max_tokens))
        spare = math.ceil(needed * SPARE) if callable(self.lengths) else 0
        number = math.ceil((needed + spare) / self.per_step) * self.per_step
        if number > len(lengths):
            raise InvalidDataError(
                f"{len(lengths)} examples in {needed} batches are too few for {self.per_step} batches in each step "
                "(processes times training.gradient_accumulation_steps)"
            )
        return number

    def _sorted(self, lengths: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """
        By the longer side, then by what one side is longer than the other; equal examples in random order.

        The second order turns round from one length to the next, so that where a batch has some of two lengths they
        are alike.
        """
        shuffled = random.permutation(len(lengths)) if self.shuffle else np.arange(len(lengths))
        source, target = lengths[shuffled].T
        longer = np.maximum(source, target)
        return shuffled[np.lexsort((np.where(longer % 2, source - target, target - source), longer))]

    def _cuts(self, lengths: np.ndarray) -> list[tuple[int, int]]:
        """Where batches of the sorted lengths start and end: exactly as many as every epoch has."""
        budget = self.max_tokens
        while len(cuts := self._filled(lengths, budget)) > self.number:
            budget = math.ceil(budget * 1.01)  # an epoch of unusually long examples
        largest = [(start - end, start, end) for start, end in cuts]
        heapq.heapify(largest)
        while len(largest) < self.number:
            _, start, end = largest[0]
            middle = (start + end) // 2
            heapq.heapreplace(largest, (start - middle, start, middle))
            heapq.heappush(largest, (middle - end, middle, end))
        return sorted((start, end) for _, start, end in largest)

    def _filled(self, lengths: np.ndarray, budget: int) -> list[tuple[int, int]]:
        """
        Fill each batch up to the budget.

        A batch that is nearly full ends early rather than get wider.
        """
        cuts, start = [], 0
        while start < len(lengths):
            most = max(1, budget // int(lengths[start].max()))
            widths = np.maximum.accumulate(lengths[start : start + most])  # of the batch, with each number of examples
            padded = widths.max(axis=1) * np.arange(1, len(widths) + 1)
            number = max(1, int(padded.searchsorted(budget, "right")))
            nearly_full = int(padded.searchsorted(NEARLY_FULL * budget, "right")) + 1
            gets_wider = (widths[nearly_full:number] != widths[nearly_full - 1 : number - 1]).any(axis=1)
            if gets_wider.any():
                number = nearly_full + int(gets_wider.argmax())
            cuts.append((start, start + number))
            start += number
        return cuts
