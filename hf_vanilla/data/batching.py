"""From the lengths of examples to batches with about the same number of tokens each."""

import heapq
import math
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache

import numpy as np
from torch.utils.data import Sampler

from .errors import InvalidDataError

NEARLY_FULL = 0.9  # share of the budget from which a batch may end early
SPARE_BATCHES = 0.02  # share of batches planned in excess where lengths change, as an epoch may need a few more

Key = tuple[int, int]
"""The epoch and the index of an example: with the seed, they decide everything that is random about it."""


class TokenBudgetBatches(Sampler[list[Key]]):
    """
    A batch sampler: batches of examples of similar length, each of at most `max_tokens` source tokens and as many
    target tokens, padding included.

    Each example is in exactly one batch of each epoch, and every epoch has the same number of batches. Which examples
    meet in a batch, and the order of the batches, depend on the seed and the epoch only.

    One optimiser step uses `per_step` batches. These follow each other and have nearly the same size, so that processes
    do not wait for each other. Accelerate gives batch i * processes + rank to each rank. As the number of batches is a
    multiple of `per_step`, it never repeats a batch to fill the last step.

    Args:
        lengths: (N, 2), source and target lengths of all examples, <eos> included; or, if they change from epoch to
            epoch, a function from the epoch to them.
        max_tokens: The budget. An example that is longer is an error.
        per_step: Processes times gradient accumulation steps.
        shuffle: False keeps the batches in the order of their length.
    """

    # There must be no attribute `batch_size`: accelerate would drop all batches of any other size.

    def __init__(
        self,
        lengths: np.ndarray | Callable[[int], np.ndarray],
        max_tokens: int,
        *,
        per_step: int = 1,
        seed: int = 0,
        shuffle: bool = True,
    ):
        # For large corpora a call takes seconds, and __len__, padding and __iter__ ask for the same epoch.
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
        """The share of padding among all source and target tokens of the first epoch."""
        lengths = self._lengths(epoch=0)
        lengths = lengths[self._sorted(lengths, np.random.default_rng(0))]
        padded = sum((end - start) * lengths[start:end].max(axis=0).sum() for start, end in self._cuts(lengths))
        return 1 - float(lengths.sum() / padded)

    def _lengths(self, epoch: int) -> np.ndarray:
        return self.lengths(epoch) if callable(self.lengths) else self.lengths

    def _number(self) -> int:
        """How many batches each epoch has: a multiple of `per_step`, and some to spare if lengths change."""
        lengths = self._lengths(epoch=0)
        longest = int(lengths.max(initial=0))
        if longest > self.max_tokens:
            index = int(lengths.max(axis=1).argmax())
            raise InvalidDataError(
                f"example {index} has {longest} tokens, more than max_tokens ({self.max_tokens}) in a batch"
            )
        needed = len(self._filled(lengths[self._sorted(lengths, np.random.default_rng(0))], self.max_tokens))
        spare = math.ceil(needed * SPARE_BATCHES) if callable(self.lengths) else 0
        number = math.ceil((needed + spare) / self.per_step) * self.per_step
        if number > len(lengths):
            raise InvalidDataError(
                f"{len(lengths)} examples in {needed} batches are too few for {self.per_step} batches in each step "
                "(processes times training.gradient_accumulation_steps)"
            )
        return number

    def _sorted(self, lengths: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """
        Indices by the longer side, then by the difference of both sides; equal examples in random order.

        The difference rises within one length and falls within the next. So where a batch has examples of two lengths,
        they are still alike in both sides.
        """
        shuffled = random.permutation(len(lengths)) if self.shuffle else np.arange(len(lengths))
        source, target = lengths[shuffled].T
        longer = np.maximum(source, target)
        return shuffled[np.lexsort((np.where(longer % 2, source - target, target - source), longer))]

    def _cuts(self, lengths: np.ndarray) -> list[tuple[int, int]]:
        """Start and end of each batch in the sorted lengths: `self.number` of them."""
        budget = self.max_tokens
        while len(cuts := self._filled(lengths, budget)) > self.number:
            budget = math.ceil(budget * 1.01)  # this epoch's examples are so long that the spare batches do not suffice
        # Too few: halve the largest. (Negative sizes, as heapq has the smallest in front.)
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
        Start and end of batches that are filled up to the budget, one after the other.

        A batch that is nearly full ends before an example that would make its padded source or target longer.
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
