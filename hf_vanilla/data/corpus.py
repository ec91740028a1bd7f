"""From files and datasets to pairs of a source and a target, checked and one at a time."""

import codecs
import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .errors import InvalidDataError
from .spoken import spoken_pairs

Column = str | int


@dataclass(frozen=True)
class Pair:
    """One example. A source has several parts if it is read from several columns (a lemma and its tags, say)."""

    source: tuple[str, ...]
    target: str
    where: str


@dataclass(frozen=True)
class ParallelText:
    """Two text files, plain or gzipped: line n of one is the translation of line n of the other."""

    source: Path
    target: Path

    def __iter__(self) -> Iterator[Pair]:
        lines = itertools.zip_longest(lines_of(self.source), lines_of(self.target))
        for number, (left, right) in enumerate(lines, 1):
            if left is None or right is None:
                ended, other = (self.source, self.target) if left is None else (self.target, self.source)
                raise InvalidDataError(f"{ended}: ends after line {number - 1}, where {other} goes on")
            where = f"{self.source}:{number}"
            yield Pair((text_of(left, where),), text_of(right, f"{self.target}:{number}"), where)


@dataclass(frozen=True)
class Table:
    """
    One file with a column for each side: tab-separated (.tsv, .txt), JSON lines (.jsonl, .json) or .parquet.

    All but .parquet may be gzipped. Columns are named, or, in tab-separated files without a header line, numbered from
    0. With `separator` any file is read as text with columns that this separates, whatever its name.
    """

    file: Path
    source: tuple[Column, ...]
    target: Column
    separator: str | None = None

    def __iter__(self) -> Iterator[Pair]:
        for where, row in self._rows():
            yield Pair(tuple(cell(row, name, where) for name in self.source), cell(row, self.target, where), where)

    def _rows(self) -> Iterator[tuple[str, Mapping[Column, Any]]]:
        if self.separator:
            return self._separated_rows(self.separator)
        suffixes = [suffix for suffix in self.file.suffixes if suffix != ".gz"]
        match suffixes[-1] if suffixes else "":
            case ".parquet":
                return self._parquet_rows()
            case ".jsonl" | ".json":
                return self._json_rows()
            case ".tsv" | ".txt":
                return self._separated_rows("\t")
            case suffix:
                raise InvalidDataError(
                    f"{self.file}: cannot read {suffix or 'a file without a suffix'}; known are "
                    ".tsv, .txt, .jsonl, .json and .parquet"
                )

    def _separated_rows(self, separator: str) -> Iterator[tuple[str, Mapping[Column, Any]]]:
        has_header = any(isinstance(name, str) for name in (*self.source, self.target))
        header: list[str] = []
        for number, line in enumerate(lines_of(self.file), 1):
            where = f"{self.file}:{number}"
            cells = text_of(line, where).split(separator)
            if has_header and not header:
                header = cells
                continue
            if header and len(cells) != len(header):
                raise InvalidDataError(f"{where}: has {len(cells)} columns, but the header has {len(header)}")
            yield where, dict(enumerate(cells)) | dict(zip(header, cells, strict=False))

    def _json_rows(self) -> Iterator[tuple[str, Mapping[Column, Any]]]:
        for number, line in enumerate(lines_of(self.file), 1):
            where = f"{self.file}:{number}"
            try:
                row = json.loads(text_of(line, where))
            except json.JSONDecodeError as error:
                raise InvalidDataError(f"{where}: is not a line of JSON: {error}") from None
            if not isinstance(row, dict):
                raise InvalidDataError(f"{where}: is {type(row).__name__}, not an object with columns")
            yield where, row

    def _parquet_rows(self) -> Iterator[tuple[str, Mapping[Column, Any]]]:
        import pyarrow
        import pyarrow.parquet

        number = 0
        try:
            with pyarrow.parquet.ParquetFile(self.file) as table:
                for batch in table.iter_batches(batch_size=1000):
                    for row in batch.to_pylist():
                        number += 1
                        yield f"{self.file}: row {number}", row
        except (OSError, pyarrow.ArrowInvalid) as error:
            raise InvalidDataError(f"{self.file}: cannot be read as Parquet: {error}") from None


@dataclass(frozen=True)
class HubDataset:
    """
    Whatever `datasets.load_dataset` loads: an id on the Hub or a local folder. Source and target are columns, or
    languages in a column `translation`.
    """

    dataset: str
    source: tuple[Column, ...]
    target: Column
    name: str | None = None
    split: str = "train"
    revision: str | None = None  # a commit, branch or tag on the Hub

    def __iter__(self) -> Iterator[Pair]:
        import datasets

        try:
            rows = datasets.load_dataset(self.dataset, self.name, split=self.split, revision=self.revision)
        except (OSError, ValueError) as error:
            raise InvalidDataError(f"dataset {self.dataset} ({self.name}, {self.split}): {error}") from None
        for number, row in enumerate(rows):
            where = f"{self.dataset} ({self.split}): row {number}"
            yield Pair(tuple(cell(row, name, where) for name in self.source), cell(row, self.target, where), where)


@dataclass(frozen=True)
class GeneratedPairs:
    """The quick start's task, generated without any files: spoken English to how it is written."""

    generated: Literal["spoken_forms"]
    split: str
    size: int

    def __iter__(self) -> Iterator[Pair]:
        for number, (spoken, written) in enumerate(spoken_pairs(self.split, self.size)):
            yield Pair((spoken,), written, f"{self.generated} ({self.split}): {number}")


Corpus = ParallelText | Table | HubDataset | GeneratedPairs


def read_pairs(corpora: Iterable[Corpus]) -> Iterator[Pair]:
    """All pairs of several corpora, in order."""
    return itertools.chain.from_iterable(corpora)


def lines_of(file: Path) -> Iterator[bytes]:
    """Lines of a file, plain or gzipped."""
    opener: Callable[..., Any] = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(file, "rb") as stream:
            yield from without_byte_order_mark(stream)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidDataError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def without_byte_order_mark(lines: Iterable[bytes]) -> Iterator[bytes]:
    """
    Lines without the mark that some editors write at the beginning of a file: it is no text.

    Lines are bytes, because only "\\n" ends a line here: text mode would also end one at a lone "\\r".
    """
    for number, line in enumerate(lines):
        text = line if number else line.removeprefix(codecs.BOM_UTF8)
        if text:
            yield text


def text_of(line: bytes, where: str) -> str:
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidDataError(f"{where}: byte {error.start + 1} is not UTF-8 ({line[error.start]:#04x})") from None


def cell(row: Mapping[Column, Any], name: Column, where: str) -> str:
    """The text in a column of a row, or in a language of its column `translation`."""
    columns = row["translation"] if name not in row and isinstance(row.get("translation"), dict) else row
    if name not in columns:
        known = ", ".join(map(str, columns))
        raise InvalidDataError(f"{where}: has no column {name!r}; its columns are {known}")
    if not isinstance(columns[name], str):
        raise InvalidDataError(f"{where}: column {name!r} is {columns[name]!r}, not text")
    return columns[name]
