"""From files and datasets to pairs of a source and a target, checked and one at a time."""

import codecs
import csv
import difflib
import gzip
import itertools
import json
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .errors import InvalidDataError
from .spoken import spoken_pairs

Column = str | int

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_CSV_CELL = 10_000_000
"""Characters. With a quote that is not closed, the rest of the file would be one cell."""


@dataclass(frozen=True)
class Pair:
    """
    One example.

    Args:
        source: A text, or several parts if it is read from several columns (a lemma and its features, say).
        where: The file and line, for messages.
        prefix: What the model reads before the source, as in `translate English to German: `. It is not in `source`.
    """

    source: tuple[str, ...]
    target: str
    where: str
    prefix: str = ""


@dataclass(frozen=True)
class Symbols:
    """What a column holds if it is not ordinary text: symbols, each of which is one token, with separators between."""

    separator: str = " "


@dataclass(frozen=True, kw_only=True)
class Corpus(ABC):
    """
    Pairs of texts, and what is said of all of them together.

    Args:
        prefix: That of each pair.
        weight: The share of the training pairs that come from this corpus, relative to the weights of the others.
        symbols: For each part of the source, and then for the target: None if it is ordinary text. Empty if all are.
    """

    prefix: str = ""
    weight: float | None = None
    symbols: tuple[Symbols | None, ...] = ()

    @property
    def source_symbols(self) -> tuple[Symbols | None, ...]:
        """For each part of the source: None if it is ordinary text."""
        return self.symbols[:-1] or (None,) * self.parts

    @property
    def target_symbols(self) -> Symbols | None:
        """None if the target is ordinary text."""
        return self.symbols[-1] if self.symbols else None

    @property
    def parts(self) -> int:
        """How many parts a source has."""
        return 1

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the recipe names."""
        return ()

    @property
    def title(self) -> str:
        """What to call it in a table of scores."""
        return self.files[0].name

    def __iter__(self) -> Iterator[Pair]:
        for file in self.files:
            status_of(file)
        return self._pairs()

    @abstractmethod
    def _pairs(self) -> Iterator[Pair]: ...


@dataclass(frozen=True)
class ParallelText(Corpus):
    """Two text files, plain or gzipped: line n of one is the translation of line n of the other."""

    source: Path
    target: Path

    @property
    def files(self) -> tuple[Path, ...]:
        return self.source, self.target

    def _pairs(self) -> Iterator[Pair]:
        lines = itertools.zip_longest(lines_of(self.source), lines_of(self.target))
        for number, (left, right) in enumerate(lines, 1):
            if left is None or right is None:
                ended, other = (self.source, self.target) if left is None else (self.target, self.source)
                raise InvalidDataError(f"{ended}: ends after line {number - 1}, where {other} goes on")
            where = f"{self.source}:{number}"
            yield Pair((text_of(left, where),), text_of(right, f"{self.target}:{number}"), where, self.prefix)


@dataclass(frozen=True)
class Table(Corpus):
    """
    One file with a column for each side: tab-separated (.tsv, .txt), .csv, JSON lines (.jsonl, .json) or .parquet.

    All but .parquet may be gzipped. Columns are named, or, in files without a header line, numbered from 0.

    Args:
        separator: What separates the columns, where that is not a tab, or in .csv not a comma. With it, a file of any
            name is read as text, each line a row; only .csv and .csv.gz have quotes and rows of several lines.
    """

    file: Path
    source: tuple[Column, ...]
    target: Column
    separator: str | None = None

    @property
    def parts(self) -> int:
        return len(self.source)

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.file,)

    def _pairs(self) -> Iterator[Pair]:
        for where, row in self._rows():
            source = tuple(cell(row, name, where) for name in self.source)
            yield Pair(source, cell(row, self.target, where), where, self.prefix)

    def _rows(self) -> Iterator[tuple[str, Mapping[Column, Any]]]:
        suffixes = [suffix for suffix in self.file.suffixes if suffix != ".gz"]
        match suffixes[-1] if suffixes else "":
            case ".csv":
                return self._named(self._csv_rows(self.separator or ","))
            case _ if self.separator:
                return self._named(self._separated_rows(self.separator))
            case ".parquet":
                return self._parquet_rows()
            case ".jsonl" | ".json":
                return self._json_rows()
            case ".tsv" | ".txt":
                return self._named(self._separated_rows("\t"))
            case suffix:
                raise InvalidDataError(
                    f"{self.file}: cannot read {suffix or 'a file without a suffix'}; known are "
                    ".tsv, .txt, .csv, .jsonl, .json and .parquet; text with columns under any other name needs "
                    'separator, as in separator: ";"'
                )

    def _named(self, rows: Iterator[tuple[str, list[str]]]) -> Iterator[tuple[str, Mapping[Column, Any]]]:
        """Rows by the numbers of their columns, and by the names in the first row if the recipe has names."""
        has_header = any(isinstance(name, str) for name in (*self.source, self.target))
        header: list[str] = []
        for where, cells in rows:
            if has_header and not header:
                header = cells
                continue
            if header and len(cells) != len(header):
                raise InvalidDataError(f"{where}: has {len(cells)} columns, but the header has {len(header)}")
            yield where, dict(enumerate(cells)) | dict(zip(header, cells, strict=False))

    def _separated_rows(self, separator: str) -> Iterator[tuple[str, list[str]]]:
        for number, line in enumerate(lines_of(self.file), 1):
            where = f"{self.file}:{number}"
            yield where, text_of(line, where).split(separator)

    def _csv_rows(self, separator: str) -> Iterator[tuple[str, list[str]]]:
        """A row may have several lines, and is named by its first one. Empty lines are no rows."""
        if len(separator) != 1 or separator in '"\r\n':
            raise InvalidDataError(
                f"{self.file}: separator {separator!r} must be one character, and no quote, for .csv"
            )
        csv.field_size_limit(MAX_CSV_CELL)
        lines = (decoded(line, f"{self.file}:{number}") for number, line in enumerate(lines_of(self.file), 1))
        reader = csv.reader(lines, delimiter=separator, strict=True)
        while True:
            where = f"{self.file}:{reader.line_num + 1}"
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise InvalidDataError(
                    f"{where}: is not a row of CSV, or begins one that does not end: {error}; a cell with quotes, "
                    'separators or line breaks stands in quotes, and a quote inside of it is written ""'
                ) from None
            if cells:
                yield where, cells

    def _json_rows(self) -> Iterator[tuple[str, Mapping[Column, Any]]]:
        for number, line in enumerate(lines_of(self.file), 1):
            where = f"{self.file}:{number}"
            try:
                row = json.loads(text_of(line, where))
            except InvalidDataError:
                raise
            except (ValueError, RecursionError) as error:
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
class HubDataset(Corpus):
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

    @property
    def parts(self) -> int:
        return len(self.source)

    @property
    def title(self) -> str:
        return self.dataset

    def _pairs(self) -> Iterator[Pair]:
        import datasets

        with loading(f"dataset {self.dataset} ({self.name}, {self.split})"):
            rows = datasets.load_dataset(self.dataset, self.name, split=self.split, revision=self.revision)
        for number, row in enumerate(rows):
            where = f"{self.dataset} ({self.split}): row {number}"
            source = tuple(cell(row, name, where) for name in self.source)
            yield Pair(source, cell(row, self.target, where), where, self.prefix)


@dataclass(frozen=True)
class GeneratedPairs(Corpus):
    """The quick start's task, generated without any files: spoken English to how it is written."""

    generated: Literal["spoken_forms"]
    split: str
    size: int

    @property
    def title(self) -> str:
        return self.generated

    def _pairs(self) -> Iterator[Pair]:
        for number, (spoken, written) in enumerate(spoken_pairs(self.split, self.size)):
            yield Pair((spoken,), written, f"{self.generated} ({self.split}): {number}", self.prefix)


@contextmanager
def loading(where: str) -> Iterator[None]:
    """In this block what `datasets` cannot load is said in one line."""
    import datasets

    try:
        yield
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = error.__cause__ if isinstance(error, datasets.exceptions.DatasetGenerationError) else error
        lines = str(reason).splitlines() or [type(reason).__name__]
        raise InvalidDataError(f"{where}: {lines[0]}") from None


def read_pairs(corpora: Iterable[Corpus]) -> Iterator[Pair]:
    """All pairs of several corpora, in order."""
    return itertools.chain.from_iterable(corpora)


def status_of(file: Path) -> os.stat_result:
    """Size and times of a file that a recipe names; if it is not there, an error that says where it was looked for."""
    try:
        return file.stat()
    except FileNotFoundError as error:
        raise InvalidDataError(f"{file}: cannot be read: {error.strerror}{_advice(file)}") from None
    except OSError as error:
        raise InvalidDataError(f"{file}: cannot be read: {error.strerror}") from None


def _advice(file: Path) -> str:
    """What to look at if a file is not there: names like its name, and where a recipe's files are looked for."""
    names = [path.name for path in file.parent.iterdir()] if file.parent.is_dir() else []
    near = difflib.get_close_matches(file.name, names, n=1)
    return (
        ("" if file.parent.is_dir() else f"; there is no folder {file.parent}")
        + (f"; did you mean {near[0]!r}?" if near else "")
        + "; names of files start at data.folder or, where that is not given, at the folder of the recipe"
    )


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
    return decoded(line.removesuffix(b"\n").removesuffix(b"\r"), where)


def decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidDataError(f"{where}: byte {error.start + 1} is not UTF-8 ({line[error.start]:#04x})") from None


def cell(row: Mapping[Column, Any], name: Column, where: str) -> str:
    """The text in a column of a row, or in a language of its column `translation`."""
    columns = row["translation"] if name not in row and isinstance(row.get("translation"), dict) else row
    if name not in columns:
        known = ", ".join(map(str, columns))
        raise InvalidDataError(f"{where}: has no column {name!r}; its columns are {known}")
    text = columns[name]
    if not isinstance(text, str):
        raise InvalidDataError(f"{where}: column {name!r} is {text!r}, not text")
    if half := LONE_SURROGATE.search(text):
        raise InvalidDataError(
            f"{where}: column {name!r} has half of a character (\\u{ord(half[0]):04x}), as of an emoji that was cut"
        )
    return text
