"""Engines and a clock whose every step the test decides."""

import time
from collections.abc import Callable, Sequence
from queue import Queue
from threading import Event

from starlette.testclient import TestClient

from hf_vanilla.inference.translator import Hypothesis
from hf_vanilla.serving.batcher import Found, Wanted

MakeClient = Callable[..., TestClient]
PATIENCE = 60  # seconds that a test waits for what must come; it never waits so long where all is right


def upside_down(lines: Sequence[str], wanted: Wanted) -> list[Found]:
    """A translation that shows what it is of: backwards, and the others with their place."""
    return [
        [Hypothesis(line[::-1] + ("" if place == 0 else f" {place}"), -0.5 * place) for place in range(wanted.number)]
        for line in lines
    ]


class Held:
    """Translates when it is told to. `begun` has the batches that it was given."""

    def __init__(self) -> None:
        self.begun: Queue[tuple[list[str], Wanted]] = Queue()
        self.may_go_on = Event()

    def __call__(self, lines: Sequence[str], wanted: Wanted) -> list[Found]:
        self.begun.put((list(lines), wanted))
        assert self.may_go_on.wait(PATIENCE)
        return upside_down(lines, wanted)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what must come."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)
