"""Several processes, started by `accelerate launch` or torchrun, share the lines of one input."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState

Item = TypeVar("Item")
Answer = TypeVar("Answer")

LONGEST_WAIT = timedelta(days=30)  # for somebody who types the next line


class Processes:
    """All processes that a launcher has started, or the only one. The first of them reads and writes."""

    def __init__(self) -> None:
        self.rank, self.number = 0, int(os.environ.get("WORLD_SIZE", "1"))
        self.group = None
        if self.number > 1:
            PartialState(cpu=not torch.accelerator.is_available())
            self.rank = dist.get_rank()
            self.group = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def answered(
        self, windows: Iterable[Sequence[Item]], answer: Callable[[Sequence[Item]], list[Answer]]
    ) -> Iterator[tuple[Sequence[Item], list[Answer]]]:
        """
        Each window with its answers, in order, for the first process; the others get nothing.

        Args:
            windows: Only the first process looks at them.
        """
        if self.number == 1:
            yield from ((window, answer(window)) for window in windows)
        elif self.is_first:
            yield from self._lead(windows, answer)
        else:
            while (window := self._receive()) is not None:
                self._gather(answer(window[self.rank :: self.number]))

    def _lead(
        self, windows: Iterable[Sequence[Item]], answer: Callable[[Sequence[Item]], list[Answer]]
    ) -> Iterator[tuple[Sequence[Item], list[Answer]]]:
        try:
            for window in windows:
                self._send(window)
                shares = self._gather(answer(window[:: self.number]))
                places = (divmod(place, self.number) for place in range(len(window)))
                yield window, [shares[rank][own] for own, rank in places]
        finally:
            self._send(None)  # also where nobody reads any further: the others would wait

    def _send(self, window: Sequence[Item] | None) -> None:
        dist.broadcast_object_list([window], src=0, group=self.group)

    def _receive(self) -> Any:
        message: list[Any] = [None]
        dist.broadcast_object_list(message, src=0, group=self.group)
        return message[0]

    def _gather(self, share: list[Answer]) -> list[list[Answer]]:
        shares: list[Any] = [None] * self.number
        dist.gather_object(share, shares if self.is_first else None, dst=0, group=self.group)
        return shares
