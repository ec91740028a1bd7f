"""Test sets: sources with one or more references each, read from files or made of the pairs of a recipe."""

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..data.corpus import Pair, lines_of, text_of, without_byte_order_mark
from ..data.errors import InvalidDataError, TextWarning

STDIN = Path("-")


@dataclass(frozen=True)
class Examples:
    """
    A test set.

    Args:
        rows: For each example the position of its translation among all that are made. Several test sets can share
            translations: each corpus of a split, and the whole split.
        sources: In their parts. None if they are not known, where only hypotheses and references are compared.
        references: For each example one or more.
    """

    name: str
    rows: Sequence[int]
    sources: Sequence[Sequence[str]] | None
    references: Sequence[Sequence[str]]

    def of(self, lines: Sequence[str]) -> list[str]:
        """The translations of these examples, of all that were made."""
        return [lines[row] for row in self.rows]


@dataclass(frozen=True)
class Files:
    """The files of a test set. Line n of each belongs together. Without a hypothesis, a model has to translate."""

    name: str
    references: tuple[Path, ...]
    source: Path | None = None
    hypothesis: Path | None = None


def examples_of(name: str, pairs: Sequence[Pair], first_row: int = 0, grouped: bool = False) -> Examples:
    """
    Examples with the targets of pairs as references.

    Args:
        first_row: The row of the first pair.
        grouped: A source of several pairs is one example, with all their targets as references.
    """
    rows: dict[object, int] = {}
    references: dict[object, list[str]] = {}
    for row, pair in enumerate(pairs, first_row):
        key = (pair.prefix, pair.source) if grouped else row
        rows.setdefault(key, row)
        references.setdefault(key, []).append(pair.target)
    sources = [pairs[row - first_row].source for row in rows.values()]
    return Examples(name, list(rows.values()), sources, list(references.values()))


def read_examples(sets: Sequence[Files], parts: int = 1) -> tuple[list[Examples], list[str]]:
    """
    Test sets and, where files have them, all hypotheses.

    Args:
        parts: How many parts a source has. If there are several, tabs separate them.
    """
    examples: list[Examples] = []
    translations: list[str] = []
    first_row = 0
    for files in sets:
        given = [file for file in (files.source, files.hypothesis, *files.references) if file]
        lines = dict(zip(given, read_together(given), strict=True))
        sources = parts_of(lines[files.source], parts, files.source) if files.source else None
        references = list(zip(*(lines[file] for file in files.references), strict=True))
        rows = range(first_row, first_row + len(references))
        examples.append(Examples(files.name, rows, sources, references))
        translations += lines[files.hypothesis] if files.hypothesis else []
        first_row = rows.stop
    return examples, translations


def parts_of(lines: Sequence[str], parts: int, file: Path) -> list[tuple[str, ...]]:
    """The parts of sources, as a `Translator` reads them: further tabs are text, and what is missing is empty."""
    found = [tuple(line.split("\t", parts - 1)) for line in lines]
    short = [number for number, own in enumerate(found) if len(own) < parts and lines[number].strip()]
    if short:
        warnings.warn(
            f"{file}:{short[0] + 1}: has {len(found[short[0]])} columns, separated by tabs, and the model was trained "
            f"on {parts}; the others, here and in later lines, are taken to be empty",
            TextWarning,
            stacklevel=3,
        )
    return [(*own, *[""] * (parts - len(own))) for own in found]


def read_translations(files: Sequence[Path], sizes: Mapping[str, int]) -> list[str]:
    """The translations by another system: a file for each test set, with as many lines as that has."""
    if len(files) != len(sizes):
        raise InvalidDataError(
            f"--against: {len(files)} for {len(sizes)} test sets; give one run, or one file of translations for each"
        )
    texts = [read_lines(file) for file in files]
    for file, lines, (name, size) in zip(files, texts, sizes.items(), strict=True):
        check_number(str(file), len(lines), name, size)
    return [line for lines in texts for line in lines]


def read_lines(file: Path) -> list[str]:
    """The lines of a text file, plain or gzipped, or of stdin for `-`."""
    stream: Iterable[bytes] = without_byte_order_mark(sys.stdin.buffer) if file == STDIN else lines_of(file)
    lines = [text_of(line, f"{file}:{number}") for number, line in enumerate(stream, start=1)]
    if not lines:
        raise InvalidDataError(f"{file}: is empty; there must be at least one line")
    return lines


def read_together(files: Sequence[Path]) -> list[list[str]]:
    """The lines of files of which line n of each belongs to line n of the others."""
    texts = [read_lines(file) for file in files]
    for file, lines in zip(files, texts, strict=True):
        check_number(str(file), len(lines), str(files[0]), len(texts[0]))
    return texts


def check_number(name: str, lines: int, other: str, expected: int) -> None:
    if lines != expected:
        raise InvalidDataError(
            f"{name} has {lines:,} lines, but {other} has {expected:,}: line n of one must belong to line n of another"
        )
