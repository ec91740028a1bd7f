"""Lengths to batches that hold about the same number of tokens each."""

import math
from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from .errors import InvalidDataError

NEARLY_FULL = 0.9  # of the budget

Key = tuple[int, int]
"""An epoch and an index: all that an example, with whatever is random about it, depends on."""


class TokenBudgetBatches(Sampler[list[Key]]):
    """
    Batches of keys whose padded tokens, on the longer side, are at most `max_tokens`.

    Examples of equal lengths are shuffled among each other and batches among each other, by the seed and the epoch
    alone. As the sorted lengths are the same in every epoch, so are the cuts between batches and their number. Each
    example is in one batch of each epoch.

    On several processes accelerate gives batch i * processes + rank to each rank. Here these are batches of the same
    size as far as possible, and their number is a multiple of the processes, so that no example comes twice.

    Args:
        lengths: (N, 2), the lengths of source and target of every example, <eos> included.
        max_tokens: The budget. An example longer than it cannot be in a batch.
        processes: How many processes share the batches.
        shuffle: False keeps batches in the order of their length.
    """

    # A sampler with an attribute `batch_size` would make accelerate drop all batches of another size.

    def __init__(
        self, lengths: np.ndarray, max_tokens: int, *, processes: int = 1, seed: int = 0, shuffle: bool = True
    ):
        longest = int(lengths.max(initial=0))
        if longest > max_tokens:
            index = int(lengths.max(axis=1).argmax())
            raise InvalidDataError(
                f"example {index} has {longest} tokens, more than max_tokens ({max_tokens}) in a batch"
            )
        self.lengths = lengths
        self.max_tokens = max_tokens
        self.processes = processes
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self.cuts = self._cuts()

    def set_epoch(self, epoch: int) -> None:
        """Called by accelerate and Trainer at the start of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.cuts)

    def __iter__(self) -> Iterator[list[Key]]:
        random = np.random.default_rng((self.seed, self.epoch))
        order = self._sorted(random)
        groups = np.arange(len(self.cuts)).reshape(-1, self.processes)
        if self.shuffle:
            random.shuffle(groups)
        for batch in groups.flat:
            start, end = self.cuts[batch]
            yield [(self.epoch, index) for index in order[start:end].tolist()]

    @property
    def padding(self) -> float:
        """The share of padding among the tokens of all batches, both sides together."""
        order = self._sorted(np.random.default_rng(0))
        padded = sum((end - start) * self.lengths[order[start:end]].max(axis=0).sum() for start, end in self.cuts)
        return 1 - self.lengths.sum() / padded

    def _sorted(self, random: np.random.Generator) -> np.ndarray:
        """
        By the longer side, then by what one side is longer than the other; equal examples in random order.

        The second order turns round from one length to the next, so that where a batch has some of two lengths they
        are alike.
        """
        shuffled = random.permutation(len(self.lengths)) if self.shuffle else np.arange(len(self.lengths))
        source, target = self.lengths[shuffled].T
        longer = np.maximum(source, target)
        return shuffled[np.lexsort((np.where(longer % 2, source - target, target - source), longer))]

    def _cuts(self) -> list[tuple[int, int]]:
        """
        Fill each batch up to the budget, then halve the largest until the processes can share them.

        A batch that is nearly full ends early rather than get wider.
        """
        cuts, start, source, target = [], 0, 0, 0
        for end, (next_source, next_target) in enumerate(self.lengths[self._sorted(np.random.default_rng(0))].tolist()):
            wider = max(source, next_source), max(target, next_target)
            is_nearly_full = max(source, target) * (end - start) > NEARLY_FULL * self.max_tokens
            if max(wider) * (end + 1 - start) > self.max_tokens or (is_nearly_full and wider != (source, target)):
                cuts.append((start, end))
                start, wider = end, (next_source, next_target)
            source, target = wider
        cuts.append((start, len(self.lengths)))
        return self._shared(cuts)

    def _shared(self, cuts: list[tuple[int, int]]) -> list[tuple[int, int]]:
        number = math.ceil(len(cuts) / self.processes) * self.processes
        if number > len(self.lengths):
            examples = f"{len(self.lengths)} examples in {len(cuts)} batches"
            raise InvalidDataError(f"{examples} cannot be shared by {self.processes} processes")
        while len(cuts) < number:
            largest = max(range(len(cuts)), key=lambda i: cuts[i][1] - cuts[i][0])
            start, end = cuts[largest]
            cuts[largest : largest + 1] = [(start, (start + end) // 2), ((start + end) // 2, end)]
        return cuts
