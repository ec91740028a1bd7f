"""Lines come in windows, none waits for others that have not arrived, and whatever bytes they are they are text."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.inference import lines
from hf_vanilla.inference.lines import Arriving, NotUTF8Warning, as_line, in_step, texts_of, windows, windows_of_file


def test_a_window_ends_with_the_line_that_fills_it() -> None:
    sizes = [list(map(len, window)) for window in windows([b"ab"] * 5000 + [b"c" * 999_999, b"d", b"e"], len)]
    assert [len(window) for window in sizes] == [4096, 905, 2]
    assert sizes[1][-1] == 999_999
    assert list(windows([], len)) == []


def test_what_has_arrived_is_answered_while_more_is_awaited() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as source, os.fdopen(writer, "wb", buffering=0) as typed:
        arriving = windows_of_file(source)
        for line in (b"one\n", b"two\n"):
            typed.write(line)
            assert next(arriving) == [line]
        typed.write(b"three\nfour")
        typed.close()
        assert [line for window in arriving for line in window] == [b"three\n", b"four"]


def test_reading_ahead_ends_with_a_full_window() -> None:
    read, may_go_on = [], threading.Event()

    def many() -> Iterator[bytes]:
        for number in range(3 * lines.WINDOW_LINES):
            read.append(number)
            if len(read) == lines.WINDOW_LINES + 2:
                may_go_on.set()
            yield b"line"

    found = iter(Arriving(many()))
    first = next(found)  # however much has arrived
    may_go_on.wait(10)
    rest = [len(window) for window in found]
    assert len(read) == len(first) + sum(rest) == 3 * lines.WINDOW_LINES
    assert max(rest) <= lines.WINDOW_LINES


def test_long_lines_fill_a_window_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "WINDOW_CHARACTERS", 100)
    sizes = [len(window) for window in Arriving([b"x" * 60] * 9)]
    assert sum(sizes) == 9
    assert max(sizes) <= 2


def test_an_error_of_reading_comes_after_the_lines_before_it() -> None:
    def broken() -> Iterator[bytes]:
        yield b"a"
        raise OSError("unplugged")

    found = iter(Arriving(broken()))
    assert next(found) == [b"a"]
    with pytest.raises(OSError, match="unplugged"):
        next(found)


def test_a_file_on_disk_is_read_in_full_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "WINDOW_LINES", 3)
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfa\nb\r\n\nc\rd\n\xff")
    with (tmp_path / "file").open("rb") as file:
        found = list(windows_of_file(file))
    assert [len(window) for window in found] == [3, 2]
    with pytest.warns(NotUTF8Warning):
        assert [text for window in found for text in texts_of(window, "f")] == ["a", "b", "", "c\rd", "\ufffd"]


def test_the_first_line_that_is_no_utf8_is_named() -> None:
    with pytest.warns(NotUTF8Warning, match=r"^file:8: byte 3 is not UTF-8 \(0xc3\)") as said:
        assert texts_of([b"a\n", b"ca\xc3t\n", b"\xff\n"], "file", 7) == ["a", "ca\ufffdt", "\ufffd"]
    assert len(said) == 1


def test_files_side_by_side_have_as_many_lines() -> None:
    others = iter([b"1", b"2", b"3"])
    assert in_step(["a", "b"], others, "file", 1) == [b"1", b"2"]
    with pytest.raises(InvalidDataError, match="file: ends after line 3, where the input goes on"):
        in_step(["c", "d"], others, "file", 3)


def test_an_answer_is_one_line_for_every_reader() -> None:
    assert len(as_line("a\nb\r\nc\x0bd\x0ce\x1cf\x85g\u2028h\u2029i").splitlines()) == 1
