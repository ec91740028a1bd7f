"""Lines in windows: enough of them to sort by length, few enough for any memory, and none waits for others to come."""

import io
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Condition, Thread
from typing import IO, TypeVar

from ..data.corpus import without_byte_order_mark
from ..data.errors import InvalidDataError, TextWarning

WINDOW_LINES = 4096
WINDOW_CHARACTERS = 1_000_000  # a single line may have more

Parts = tuple[str, ...]
"""The parts of a source: one, unless the model was trained on several columns."""

Item = TypeVar("Item")


class NotUTF8Warning(TextWarning):
    pass


@dataclass(frozen=True)
class Line:
    """
    A source on its way through the model.

    Args:
        number: Counted from 1, in all of the input.
        target: What is known of the target: its beginning for a search, all of it for a score.
    """

    number: int
    parts: Parts
    target: str = ""


def size_of(line: Line) -> int:
    return sum(map(len, line.parts)) + len(line.target)


def windows(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """All items, so many at a time. Reads no further than the window that is asked for."""
    window: list[Item] = []
    characters = 0
    for item in items:
        window.append(item)
        characters += size(item)
        if len(window) == WINDOW_LINES or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def windows_of_file(file: IO[bytes]) -> Iterator[list[bytes]]:
    """
    The lines of a binary file.

    Of a terminal or pipe, a window is what has arrived: whoever types a line, or a program that waits for the answer to
    one, gets it at once. A file on disk has everything there, and is read in full windows.
    """
    if is_complete(file):
        return windows(without_byte_order_mark(file), len)
    # A stream of its own for the thread that reads: Python cannot close one at its end that a thread waits for.
    own = os.fdopen(os.dup(file.fileno()), "rb")
    return iter(Arriving(without_byte_order_mark(own)))


def is_complete(file: IO[bytes]) -> bool:
    """Whether reading it never waits for somebody to write."""
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, AttributeError, io.UnsupportedOperation):  # there is no file behind it
        return True


class Arriving:
    """Lines as they arrive: a thread reads up to a window ahead, and each window is all that it has read by then."""

    def __init__(self, lines: Iterable[bytes]):
        self.lines = lines
        self.window: list[bytes] = []
        self.characters = 0
        self.has_ended = False
        self.failure: Exception | None = None
        self.changed = Condition()
        Thread(target=self._read, daemon=True).start()

    def __iter__(self) -> Iterator[list[bytes]]:
        while window := self._next():
            yield window

    def _next(self) -> list[bytes]:
        with self.changed:
            self.changed.wait_for(lambda: self.window or self.has_ended)
            window, self.window, self.characters = self.window, [], 0
            self.changed.notify()
        if self.failure and not window:
            raise self.failure
        return window

    def _read(self) -> None:
        try:
            for line in self.lines:
                with self.changed:
                    self.changed.wait_for(self._has_room)
                    self.window.append(line)
                    self.characters += len(line)
                    self.changed.notify()
        except Exception as error:
            self.failure = error
        with self.changed:
            self.has_ended = True
            self.changed.notify()

    def _has_room(self) -> bool:
        return len(self.window) < WINDOW_LINES and self.characters < WINDOW_CHARACTERS


def texts_of(lines: Iterable[bytes], name: str, first: int = 1) -> list[str]:
    """
    Text of lines of a file. Bytes that are not UTF-8 become U+FFFD, with a warning that names the first line.

    Only a line feed ends a line, with or without a carriage return before it, as in a training.
    """
    texts = []
    is_reported = False
    for number, line in enumerate(lines, first):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            texts.append(line.decode())
        except UnicodeDecodeError as error:
            texts.append(line.decode(errors="replace"))
            if not is_reported:
                warnings.warn(
                    f"{name}:{number}: byte {error.start + 1} is not UTF-8 ({line[error.start]:#04x}); what is not "
                    "UTF-8, here and in later lines, is read as U+FFFD",
                    NotUTF8Warning,
                    stacklevel=2,
                )
                is_reported = True
    return texts


def texts_of_open_file(file: io.IOBase) -> Iterator[str]:
    """Text of the lines of a file that Python has opened, in text mode or as bytes."""
    if isinstance(file, io.TextIOBase):
        for line in file:
            yield line.removesuffix("\n")
    else:
        for number, raw in enumerate(without_byte_order_mark(file), 1):
            yield from texts_of([raw], getattr(file, "name", "source"), number)


def in_step(window: Sequence[Item], others: Iterator[bytes], name: str, first: int) -> list[bytes]:
    """As many lines of another file."""
    found = list(islice(others, len(window)))
    if len(found) < len(window):
        raise InvalidDataError(f"{name}: ends after line {first + len(found) - 1}, where the input goes on")
    return found


def as_line(text: str) -> str:
    """A text as one line, whatever a reader takes for the end of a line."""
    return " ".join(text.splitlines())
