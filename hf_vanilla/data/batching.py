"""Lengths to batches that hold about the same number of tokens each."""

import math
from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from .errors import InvalidDataError

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
        """By target, then by source length; examples with both equal in random order."""
        shuffled = random.permutation(len(self.lengths)) if self.shuffle else np.arange(len(self.lengths))
        source, target = self.lengths[shuffled].T
        return shuffled[np.lexsort((source, target))]

    def _cuts(self) -> list[tuple[int, int]]:
        """Fill each batch up to the budget, then halve the largest until the processes can share them."""
        longest = self.lengths[self._sorted(np.random.default_rng(0))].max(axis=1)
        cuts, start, width = [], 0, 0
        for end, length in enumerate(longest.tolist()):
            width = max(width, length)
            if width * (end + 1 - start) > self.max_tokens:
                cuts.append((start, end))
                start, width = end, length
        cuts.append((start, len(longest)))
        number = math.ceil(len(cuts) / self.processes) * self.processes
        if number > len(longest):
            examples = f"{len(longest)} examples in {len(cuts)} batches"
            raise InvalidDataError(f"{examples} cannot be shared by {self.processes} processes")
        while len(cuts) < number:
            largest = max(range(len(cuts)), key=lambda i: cuts[i][1] - cuts[i][0])
            start, end = cuts[largest]
            cuts[largest : largest + 1] = [(start, (start + end) // 2), ((start + end) // 2, end)]
        return cuts
