"""
The ranks of a training, that is, its processes: they wait for the first one, and check that all see the same.

Without this check, ranks with different tokenizers or learning rates would train one model together without an error.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from accelerate import PartialState

Outcome = TypeVar("Outcome")
Seen = Mapping[str, object]

LONGEST_WAIT = timedelta(days=30)  # a corpus may take longer to encode than `ddp_timeout`
NETWORK_DELAY = 3.0  # seconds until a new file can be seen on other machines
MOST_DIFFERENCES = 8  # in a message


class RanksError(RuntimeError):
    """The ranks of a training cannot train together. The message says which of them, and why."""


class Ranks:
    """
    All ranks of a training, or its only one.

    They may wait for each other for days. A rank that dies still ends the others at once, as that closes its
    connections.
    """

    def __init__(self) -> None:
        state = PartialState()
        self.rank, self.number = state.process_index, state.num_processes
        self.group = dist.new_group(backend="gloo", timeout=LONGEST_WAIT) if self.number > 1 else None

    def first(self, work: Callable[[], Outcome]) -> Outcome:
        """What the first rank gets from some work. The others wait, and fail if it fails."""
        if self.group is None:
            return work()
        outcome, failure = self._work_and_tell(work) if self.rank == 0 else self._wait()
        if failure:
            raise RanksError(failure)
        return outcome

    def _work_and_tell(self, work: Callable[[], Any]) -> Sequence[Any]:
        message: list[Any] = [None, None]
        try:
            message[0] = work()
        except BaseException as error:
            message[1] = f"rank 0 failed: {error or type(error).__name__}"
            raise
        finally:
            dist.broadcast_object_list(message, src=0, group=self.group)
        return message

    def _wait(self) -> Sequence[Any]:
        message: list[Any] = [None, None]
        try:
            dist.broadcast_object_list(message, src=0, group=self.group)
        except RuntimeError as error:
            raise RanksError(f"rank 0 ended while rank {self.rank} waited for it; see what it said ({error})") from None
        return message

    def must_agree(self, seen: Seen) -> None:
        """All ranks must see the same; each says which does not."""
        if self.group is None:
            return
        all_seen: list[Seen] = [{}] * self.number
        dist.all_gather_object(all_seen, seen, group=self.group)
        found = differences(all_seen)
        if found:
            more = [f"and {len(found) - MOST_DIFFERENCES} more"] if len(found) > MOST_DIFFERENCES else []
            raise RanksError(
                f"the ranks do not see the same: {'; '.join(found[:MOST_DIFFERENCES] + more)}. Start all of them with "
                "the same command, on a disk that all machines share"
            )

    def must_share(self, folder: Path) -> None:
        """All ranks must see what the first one writes into `folder`."""
        if self.group is None:
            return
        name = self.first(lambda: new_file(folder))
        state = "there" if appears(folder / name) else f"missing in {folder.absolute()}"
        self.must_agree({"a new file of rank 0": state})


def new_file(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    file = folder / f"seen-{uuid.uuid4().hex}"
    file.touch()
    return file.name


def appears(file: Path) -> bool:
    """Whether a file is there, or is soon."""
    deadline = time.monotonic() + NETWORK_DELAY
    while time.monotonic() < deadline:
        if file.parent.is_dir() and file in file.parent.iterdir():  # listing has network file systems ask their server
            return True
        time.sleep(0.05)
    return False


def differences(seen: Sequence[Seen]) -> list[str]:
    """What ranks see differently from the first one."""
    first = seen[0]
    return [
        f"{name} is {shown(other, name)} on rank {rank}, but {shown(first, name)} on rank 0"
        for rank, other in enumerate(seen)
        for name in sorted(first.keys() | other.keys())
        if other.get(name) != first.get(name)
    ]


def shown(seen: Seen, name: str) -> str:
    return f"{seen.get(name, 'not given')!s:.200}"
