"""
From the files that somebody has to the section `data` of a recipe.

Looks at the first lines only: how columns are separated, what they are called, which is the source and which the
target, and whether a column holds symbols (features, phonemes), each of which should be one token.
"""

import csv
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.corpus import Column, lines_of, loading, text_of
from ..data.errors import InvalidDataError

SAMPLE = 2000  # lines to look at
TABLES = (".tsv", ".csv", ".jsonl", ".json", ".parquet")
USUAL_SEPARATORS = {".tsv": "\t", ".txt": "\t", ".csv": ","}  # of columns, which a recipe need not name
SEPARATORS = {".tsv": ("\t",), ".csv": (",", ";", "\t")}
SEPARATORS_OF_TEXT = ("\t", " ||| ", "  ")
TWO_SIDES = (("source", "target"), ("src", "tgt"), ("src", "trg"), ("input", "output"), ("lemma", "form"))
NAMES = {name for pair in TWO_SIDES for name in pair} | {  # of columns, without capitals
    *("text", "translation", "sentence", "english", "german", "question", "answer"),
    *("features", "tags", "word", "pronunciation", "phonemes", "ipa"),
}
LANGUAGE = re.compile(r"[a-z]{2,3}")

# Symbols: few different ones, each of them many times, several in a text. Phonemes are separated by spaces like words,
# but are shorter: CMUdict's 39 have 1.4 letters in the mean, the 103 words of the quick start 5.1. The features of
# SIGMORPHON's Evenki are 73.
MOST_SYMBOLS = 300
OFTEN = 5  # times that a usual symbol occurs
LONGEST_BETWEEN_SPACES = 4  # letters in a usual symbol


@dataclass(frozen=True)
class Given:
    """What was typed: files, or a dataset and its configuration, and columns if they were named."""

    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    source_columns: tuple[str, ...] = ()
    target_column: str | None = None
    name: str | None = None

    @property
    def is_table(self) -> bool:
        return len(self.train) == 1

    @property
    def named_columns(self) -> tuple[str, ...]:
        return (*self.source_columns, *([self.target_column] if self.target_column else []))

    @property
    def is_dataset(self) -> bool:
        """A folder, or a name that is no file and may be an id on the Hub."""
        path = Path(self.train[0])
        is_id = re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", self.train[0]) and path.suffix not in (*TABLES, ".txt")
        return self.is_table and (path.is_dir() or (not path.exists() and bool(is_id)))


@dataclass(frozen=True)
class Rows:
    """The first rows of a table: cells by the names of their columns, or by their numbers if they have no names."""

    columns: tuple[Column, ...]
    cells: Sequence[Mapping[Column, Any]]
    separator: str | None = None  # that a recipe must name

    def texts(self, column: Column) -> list[str]:
        return [row[column] for row in self.cells if isinstance(row.get(column), str)]


def data_section(given: Given, folder: Path) -> dict[str, Any]:
    """The splits and languages, with paths relative to `folder`. There is no validation where none was given."""
    for split in ("validation", "test"):
        files = getattr(given, split)
        if files and len(files) != len(given.train):
            raise InvalidDataError(
                f"--{split}: has {len(files)} files, where there are {len(given.train)} for training; give as many, "
                "in the same order"
            )
    if given.is_dataset:
        return _dataset(given, folder)
    if given.name:
        raise InvalidDataError(f"--name {given.name}: is of a dataset, and {given.train[0]} is a file; leave it out")
    if given.named_columns and not given.is_table:
        raise InvalidDataError(
            f"--source-column and --target-column are of a table, and {' and '.join(given.train)} are two texts; leave "
            "them out"
        )
    for file in (*given.train, *given.validation, *given.test):
        refuse_what_is_no_text(Path(file))
    return _table(given, folder) if given.is_table else _two_files(given, folder)


def refuse_what_is_no_text(file: Path) -> None:
    """Name what is wrong with a file that is missing, empty or binary. (.parquet is binary, and has a reader.)"""
    if not file.exists():
        raise InvalidDataError(f"{file}: there is no such file")
    if file.is_dir():
        raise InvalidDataError(f"{file}: is a folder; name the file in it")
    if file.suffix == ".parquet":
        return
    with file.open("rb") as stream:
        if stream.read(2) == b"\x1f\x8b" and file.suffix != ".gz":
            raise InvalidDataError(f"{file}: is compressed by gzip; give it a name that ends in .gz")
    beginning = b"".join(itertools.islice(lines_of(file), SAMPLE))
    if not beginning.strip():
        raise InvalidDataError(f"{file}: is empty")
    if b"\0" in beginning:
        raise InvalidDataError(f"{file}: is binary or UTF-16, and not text in UTF-8; `iconv -t UTF-8` converts UTF-16")


def _two_files(given: Given, folder: Path) -> dict[str, Any]:
    for file in given.train:
        if suffix_of(Path(file)) in TABLES:
            raise InvalidDataError(f"{file}: is a table, which has both sides; give one table, or two text files")
    source, target = (_sample(Path(file)) for file in given.train)
    kinds = {"source": symbols_in(source), "target": symbols_in(target)}

    def corpus(files: Sequence[str]) -> dict[str, Any]:
        names = zip(kinds.items(), files, strict=True)
        return {side: _part("file", relative(file, folder), separator) for (side, separator), file in names}

    languages = {
        f"{side}_language": found
        for side, file in zip(("source", "target"), given.train, strict=True)
        if (found := language_of(file))
    }
    return _splits(given, corpus) | languages


def _table(given: Given, folder: Path) -> dict[str, Any]:
    rows = rows_of(Path(given.train[0]), given)
    sides = _sides(rows, given)

    def corpus(files: Sequence[str]) -> dict[str, Any]:
        separator = {"separator": rows.separator} if rows.separator else {}
        return {"file": relative(files[0], folder)} | separator | sides

    return _splits(given, corpus)


def _dataset(given: Given, folder: Path) -> dict[str, Any]:
    import datasets

    name, path = given.train[0], Path(given.train[0])
    with loading(f"{name}: there is no such file or folder, and as a dataset"):
        splits = datasets.load_dataset(name, given.name)
    if "train" not in splits:
        raise InvalidDataError(
            f"{name}: has no split 'train', but {', '.join(map(str, splits))}; write the recipe by hand"
        )
    sample = splits["train"].select(range(min(SAMPLE, len(splits["train"]))))
    rows = _named_rows(list(sample))
    shared: dict[str, Any] = {"dataset": relative(name, folder) if path.is_dir() else name}
    shared |= {"name": given.name} if given.name else {}
    sides = _sides(rows, given)
    found = {"train": "train", "validation": "validation", "test": "test"}
    for split in ("validation", "test"):
        if wanted := getattr(given, split):
            if wanted[0] not in splits:
                known = ", ".join(map(str, splits))
                raise InvalidDataError(f"--{split} {wanted[0]}: {name} has no such split, but {known}")
            found[split] = wanted[0]
    return {key: shared | {"split": split} | sides for key, split in found.items() if split in splits}


def _splits(given: Given, corpus: Callable[[Sequence[str]], dict[str, Any]]) -> dict[str, Any]:
    files = {"train": given.train, "validation": given.validation, "test": given.test}
    return {split: corpus(names) for split, names in files.items() if names}


def _sides(rows: Rows, given: Given) -> dict[str, Any]:
    source, target = choose_columns(rows, given)
    parts = [_part("column", column, symbols_in(rows.texts(column))) for column in source]
    return {
        "source": parts if len(parts) > 1 else parts[0],
        "target": _part("column", target, symbols_in(rows.texts(target))),
    }


def _part(key: str, name: Column, separator: str | None) -> Any:
    """A column or a file of a recipe; with its separator if it holds symbols."""
    if separator is None:
        return name
    return {key: name, "as": "words"} | ({} if separator == " " else {"separator": separator})


def choose_columns(rows: Rows, given: Given) -> tuple[list[Column], Column]:
    """The columns of the source, and that of the target: those that were named, or those that can be meant only."""
    names = {str(column): column for column in rows.columns}
    for name in given.named_columns:
        if name not in names:
            raise InvalidDataError(f"{given.train[0]}: has no column {name!r}; its columns are {', '.join(names)}")
    unclear = InvalidDataError(
        f"{given.train[0]}: its columns are {', '.join(names)}; say which are meant by --source-column (several times, "
        "if there are several) and --target-column"
    )
    if given.named_columns:
        others = [column for name, column in names.items() if name not in given.named_columns]
        source = [names[name] for name in given.source_columns] or others
        target = [names[given.target_column]] if given.target_column else others
        if len(target) != 1 or (source is others and len(others) != 1):
            raise unclear
        return source, target[0]
    features = [column for column in rows.columns[1:] if symbols_in(rows.texts(column)) == ";"]
    if len(names) == 3 and len(features) == 1:  # inflection: lemma, form, features; or lemma, features, form
        (form,) = (column for column in rows.columns[1:] if column != features[0])
        return [rows.columns[0], features[0]], form
    usual = next((pair for pair in TWO_SIDES if set(pair) <= names.keys()), None)
    if usual:
        return [usual[0]], usual[1]
    if len(names) == 2:
        return [rows.columns[0]], rows.columns[1]
    if len(names) < 2:
        raise InvalidDataError(
            f"{given.train[0]}: has one column; give the file of the targets, too: hf-vanilla init SOURCE TARGET"
        )
    raise unclear


def rows_of(file: Path, given: Given) -> Rows:
    match suffix_of(file):
        case ".parquet":
            return _rows_of_parquet(file)
        case ".jsonl" | ".json":
            return _rows_of_json(file)
        case suffix:
            return _rows_of_text(file, suffix, given)


def _rows_of_parquet(file: Path) -> Rows:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            batch = next(table.iter_batches(batch_size=SAMPLE), None)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise InvalidDataError(f"{file}: cannot be read as Parquet: {error}") from None
    if batch is None:
        raise InvalidDataError(f"{file}: is empty")
    return _named_rows(batch.to_pylist())


def _rows_of_json(file: Path) -> Rows:
    rows = []
    for number, line in enumerate(_sample(file), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidDataError(f"{file}:{number}: is not a line of JSON: {error}") from None
        if not isinstance(row, dict):
            raise InvalidDataError(f"{file}:{number}: is {type(row).__name__}, not an object with columns")
        rows.append(row)
    return _named_rows(rows)


def _named_rows(rows: list[dict[str, Any]]) -> Rows:
    cells = [languages_of(row) for row in rows]
    return Rows(tuple(name for name, cell in cells[0].items() if isinstance(cell, str)), cells)


def languages_of(row: Mapping[Any, Any]) -> Mapping[Column, Any]:
    """What is in a row: columns, or languages in its column `translation`."""
    languages = row.get("translation")
    return languages if isinstance(languages, dict) else row


def _rows_of_text(file: Path, suffix: str, given: Given) -> Rows:
    separator, table = _separated(file, suffix)
    if not table:
        raise InvalidDataError(f"{file}: no row of its beginning ends; is there a quotation mark that is not closed?")
    header, *rest = table
    to_name = None if separator == USUAL_SEPARATORS.get(suffix) else separator
    if not is_header(header, given):
        return Rows(tuple(range(len(header))), [dict(enumerate(row)) for row in table], to_name)
    return Rows(tuple(header), [dict(zip(header, row, strict=False)) for row in rest], to_name)


def _separated(file: Path, suffix: str) -> tuple[str, list[list[str]]]:
    """The separator that gives every row as many cells, at least two; if none does, the first that is usual."""
    lines = _sample(file)
    separators = SEPARATORS.get(suffix, SEPARATORS_OF_TEXT)
    whole = -1 if len(lines) == SAMPLE else None  # a row of .csv may have several lines
    tables = {separator: list(_cells(lines, separator, suffix))[:whole] for separator in separators}
    for separator, table in tables.items():
        numbers = {len(row) for row in table}
        if len(numbers) == 1 and numbers != {1}:
            return separator, table
    return separators[0], tables[separators[0]]


def _cells(lines: Sequence[str], separator: str, suffix: str) -> Iterator[list[str]]:
    if suffix == ".csv":
        with suppress(csv.Error):  # reading all of the table says where and why
            yield from filter(None, csv.reader((f"{line}\n" for line in lines), delimiter=separator))
    else:
        yield from (line.split(separator) for line in lines)


def is_header(cells: Sequence[str], given: Given) -> bool:
    """Whether a first line names the columns: as on the command line, or as columns and languages usually are."""
    if given.named_columns:
        return not all(name.isdecimal() for name in given.named_columns)
    names = [cell for cell in cells if cell.lower() in NAMES or re.fullmatch("[a-z]{2}", cell)]
    return len(names) > 1 and len(set(cells)) == len(cells)


def symbols_in(texts: Iterable[str]) -> str | None:
    """What separates the symbols of a column, or None if it is spelt."""
    texts = list(texts)
    for separator in (";", " "):
        words = Counter(word for text in texts for word in text.split(separator))
        several = sum(separator in text for text in texts) > len(texts) / 2
        is_closed = len(words) <= MOST_SYMBOLS and words.total() >= OFTEN * len(words)
        letters = sum(map(len, words.elements())) / max(1, words.total())
        if several and is_closed and (separator == ";" or letters <= LONGEST_BETWEEN_SPACES):
            return separator
    return None


def suffix_of(file: Path) -> str:
    suffixes = [suffix for suffix in file.suffixes if suffix != ".gz"]
    return suffixes[-1] if suffixes else ""


def language_of(file: str) -> str | None:
    """`train.en.gz` is in English."""
    suffix = suffix_of(Path(file)).removeprefix(".")
    return suffix if LANGUAGE.fullmatch(suffix) and suffix not in ("src", "tgt", "trg", "txt", "tsv") else None


def relative(file: str, folder: Path) -> str:
    return Path(os.path.relpath(file, folder)).as_posix()


def _sample(file: Path) -> list[str]:
    lines = enumerate(itertools.islice(lines_of(file), SAMPLE), 1)
    return [text_of(line, f"{file}:{number}") for number, line in lines]
