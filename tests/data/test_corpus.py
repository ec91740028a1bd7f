"""Every kind of source gives the same pairs, and what is wrong with one is said with its file and line."""

import codecs
import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from hf_vanilla.data import corpus as corpus_module
from hf_vanilla.data.corpus import Corpus, GeneratedPairs, HubDataset, ParallelText, Table, read_pairs
from hf_vanilla.data.errors import InvalidDataError

PAIRS = [("a dog", "ein Hund"), ("two\u2028cats \x85 , é", "zwei Katzen"), ("  x ", "\ty")]


def lines(column: int) -> bytes:
    return "".join(f"{pair[column]}\n" for pair in PAIRS).encode()


def parallel(folder: Path) -> Corpus:
    (folder / "a.en").write_bytes(lines(0))
    (folder / "a.de.gz").write_bytes(gzip.compress(lines(1)))
    return ParallelText(folder / "a.en", folder / "a.de.gz")


def windows_parallel(folder: Path) -> Corpus:
    (folder / "w.en").write_bytes(lines(0).replace(b"\n", b"\r\n").removesuffix(b"\r\n"))
    (folder / "w.de").write_bytes(lines(1))
    return ParallelText(folder / "w.en", folder / "w.de")


def json_lines(folder: Path) -> Corpus:
    rows = "".join(json.dumps({"id": 3, "translation": {"en": s, "de": t}}) + "\n" for s, t in PAIRS)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    return Table(folder / "a.jsonl.gz", ("en",), "de")


def comma_separated(folder: Path) -> Corpus:
    rows = io.StringIO()
    csv.writer(rows).writerows([("id", "en", "de"), *((3, *pair) for pair in PAIRS)])
    (folder / "a.csv.gz").write_bytes(gzip.compress(codecs.BOM_UTF8 + rows.getvalue().encode()))
    return Table(folder / "a.csv.gz", ("en",), "de")


def parquet(folder: Path) -> Corpus:
    sources, targets = zip(*PAIRS, strict=True)
    pa.parquet.write_table(pa.table({"s": sources, "t": targets}), folder / "a.parquet")
    return Table(folder / "a.parquet", ("s",), "t")


def local_dataset(folder: Path) -> Corpus:
    (folder / "set").mkdir()
    rows = "".join(json.dumps({"translation": {"en": s, "de": t}}) + "\n" for s, t in PAIRS)
    (folder / "set" / "train.jsonl").write_text(rows, encoding="utf-8")
    return HubDataset(str(folder / "set"), ("en",), "de", split="train")


@pytest.mark.parametrize("make", [parallel, windows_parallel, json_lines, comma_separated, parquet, local_dataset])
def test_every_kind_of_source_gives_the_same_pairs(make: Callable[[Path], Corpus], tmp_path: Path) -> None:
    pairs = list(make(tmp_path))
    assert [(*pair.source, pair.target) for pair in pairs] == PAIRS
    assert len({pair.where for pair in pairs}) == len(PAIRS)


def test_tables_of_tabs_have_numbered_or_named_columns_and_sources_of_several_parts(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("lemma\ttags\tform\nrun\tPAST\tran\n", encoding="utf-8")
    named = list(Table(file, ("lemma", "tags"), "form"))
    assert [(pair.source, pair.target) for pair in named] == [(("run", "PAST"), "ran")]
    assert named[0].where == f"{file}:2"
    assert [pair.target for pair in Table(file, (0,), 2)] == ["form", "ran"]


@pytest.mark.parametrize("dialect", [csv.excel, csv.unix_dialect])
def test_cells_of_csv_may_have_separators_quotes_and_line_breaks(tmp_path: Path, dialect: type[csv.Dialect]) -> None:
    cells = ["plain", "a, b", 'said "yes"', "two\nlines", "three\r\nlines\r.", "\t", "a\0b", "", "x" * 1_000_000]
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, dialect).writerows(zip(cells, reversed(cells), strict=True))
    pairs = list(Table(tmp_path / "a.csv", (0,), 1))
    assert [(*pair.source, pair.target) for pair in pairs] == list(zip(cells, reversed(cells), strict=True))
    assert [pair.where.rpartition(":")[-1] for pair in pairs[:7]] == ["1", "2", "3", "4", "6", "9", "11"]


def test_csv_has_any_separator_of_one_character_and_its_empty_lines_are_no_rows(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", b'lemma;form\n\n"a;b";c\n\n')
    (pair,) = Table(tmp_path / "a.csv", ("lemma",), "form", separator=";")
    assert (*pair.source, pair.target, pair.where) == ("a;b", "c", f"{tmp_path / 'a.csv'}:3")


def test_half_of_a_character_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"en": "a", "de": "b"}\n{"en": "so sad \\ud83d", "de": "b"}\n')
    with pytest.raises(InvalidDataError, match=r"a.jsonl:2: column 'en' has half of a character \(\\ud83d\)"):
        list(Table(tmp_path / "a.jsonl", ("en",), "de"))


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}", "{"])
def test_json_that_cannot_be_read_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(line)
    with pytest.raises(InvalidDataError, match=r"a.jsonl:1: is not a line of JSON"):
        list(Table(tmp_path / "a.jsonl", ("en",), "de"))


def test_a_cell_of_csv_that_is_far_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = csv.field_size_limit()  # of all readers in the process
    monkeypatch.setattr(corpus_module, "MAX_CSV_CELL", 1000)
    write(tmp_path, "a.csv", b'a,b\nc,"' + b"many\n" * 1000)
    with pytest.raises(
        InvalidDataError, match=r"a\.csv:2: is not a row of CSV, or begins one that does not end: field l"
    ):
        list(Table(tmp_path / "a.csv", (0,), 1))
    csv.field_size_limit(limit)


def test_a_separator_makes_any_file_a_table(tmp_path: Path) -> None:
    file = tmp_path / "words-0.7b.test.gz"
    file.write_bytes(gzip.compress(b"ABBY  AE B IY\nABET  AH B EH T\n"))
    pairs = [(*pair.source, pair.target) for pair in Table(file, (0,), 1, separator="  ")]
    assert pairs == [("ABBY", "AE B IY"), ("ABET", "AH B EH T")]


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    """As some editors write it; inside of a text the same character is text."""
    mark = codecs.BOM_UTF8
    for name, content in {"a.tsv": b"s\tt\na\tx\n", "a.jsonl": b'{"s": "a", "t": "x"}\n'}.items():
        write(tmp_path, name, mark + content)
        assert [(*p.source, p.target) for p in Table(tmp_path / name, ("s",), "t")] == [("a", "x")]
    write(tmp_path, "b.tsv", mark + b"a\tx\n")
    assert [(*p.source, p.target) for p in Table(tmp_path / "b.tsv", (0,), 1)] == [("a", "x")]
    write(tmp_path, "s.gz", gzip.compress(mark + b"a\n" + mark + b"b\n"))
    write(tmp_path, "t", mark + b"x\ny\n")
    parallel_text = ParallelText(tmp_path / "s.gz", tmp_path / "t")
    assert [(*p.source, p.target) for p in parallel_text] == [("a", "x"), ("\ufeffb", "y")]
    write(tmp_path, "empty", mark)
    assert list(ParallelText(tmp_path / "empty", tmp_path / "empty")) == []


def test_several_sources_follow_each_other(tmp_path: Path) -> None:
    first, second = parallel(tmp_path), GeneratedPairs("spoken_forms", "test", 2)
    assert [pair.target for pair in read_pairs([first, second])][:3] == [target for _, target in PAIRS]
    assert len(list(read_pairs([first, second]))) == 5


def write(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize(
    ("files", "corpus", "message"),
    [
        (
            {"s": b"a\nb\nc\n", "t": b"x\ny\n"},
            ParallelText(Path("s"), Path("t")),
            "t: ends after line 2, where s goes on",
        ),
        ({"s": b"a\n", "t": b"x\ny\n"}, ParallelText(Path("s"), Path("t")), "s: ends after line 1, where t goes on"),
        ({"s": b"a\nb\xff\n", "t": b"x\ny\n"}, ParallelText(Path("s"), Path("t")), "s:2: byte 2 is not UTF-8 (0xff)"),
        ({"t": b"x\n"}, ParallelText(Path("s"), Path("t")), "s: cannot be read: No such file or directory"),
        (
            {"s.gz": b"plain\n", "t": b"x\n"},
            ParallelText(Path("s.gz"), Path("t")),
            "s.gz: cannot be read: Not a gzipped",
        ),
        ({"a.tsv": b"x\ty\n1\n"}, Table(Path("a.tsv"), ("x",), "y"), "a.tsv:2: has 1 columns, but the header has 2"),
        ({"a.tsv": b"x\ty\n1\t2\n"}, Table(Path("a.tsv"), ("x",), "z"), "a.tsv:2: has no column 'z'"),
        ({"a.tsv": b"1\t2\n3\n"}, Table(Path("a.tsv"), (0,), 1), "a.tsv:2: has no column 1"),
        (
            {"a.jsonl": b'{"s": "a"}\n'},
            Table(Path("a.jsonl"), ("s",), "t"),
            "a.jsonl:1: has no column 't'; its columns are s",
        ),
        (
            {"a.jsonl": b'{"s": "a", "t": 5}\n'},
            Table(Path("a.jsonl"), ("s",), "t"),
            "a.jsonl:1: column 't' is 5, not text",
        ),
        ({"a.jsonl": b"{}\n{\n"}, Table(Path("a.jsonl"), (), "t"), "a.jsonl:1: has no column 't'"),
        ({"a.jsonl": b"[1]\n"}, Table(Path("a.jsonl"), ("s",), "t"), "a.jsonl:1: is list, not an object"),
        ({"a.jsonl": b"{]\n"}, Table(Path("a.jsonl"), ("s",), "t"), "a.jsonl:1: is not a line of JSON"),
        ({"a.parquet": b"not parquet"}, Table(Path("a.parquet"), ("s",), "t"), "a.parquet: cannot be read as Parquet"),
        (
            {"a.csv": b'x,y\n1,"2\n3,4\n'},
            Table(Path("a.csv"), ("x",), "y"),
            "a.csv:2: is not a row of CSV, or begins one",
        ),
        ({"a.csv": b'x,y\n1,"2" 3\n'}, Table(Path("a.csv"), ("x",), "y"), "a.csv:2: is not a row of CSV"),
        ({"a.csv": b"x,y\r1,2\r"}, Table(Path("a.csv"), (0,), 1), "a.csv:1: is not a row of CSV"),
        ({"a.csv": b'x,y\n"1\n2",3\n4\n'}, Table(Path("a.csv"), ("x",), "y"), "a.csv:4: has 1 columns, but the header"),
        ({"a.csv": b'x,y\n"1\n\xff",3\n'}, Table(Path("a.csv"), ("x",), "y"), "a.csv:3: byte 1 is not UTF-8 (0xff)"),
        ({"a.csv": b"x,y\n"}, Table(Path("a.csv"), (0,), 1, "||"), "a.csv: separator '||' must be one character"),
        ({"a.csv": "x,y\n".encode("utf-16")}, Table(Path("a.csv"), (0,), 1), "a.csv:1: byte 1 is not UTF-8 (0xff)"),
        ({"a.xls": b""}, Table(Path("a.xls"), ("s",), "t"), "a.xls: cannot read .xls"),
        (
            {"train.en.gz": b""},
            ParallelText(Path("train.en"), Path("t")),
            "train.en: cannot be read: No such file or directory; did you mean 'train.en.gz'?",
        ),
        (
            {},
            Table(Path("sub/a.tsv"), (0,), 1),
            "a.tsv: cannot be read: No such file or directory; there is no folder sub",
        ),
        (
            {},
            Table(Path("a.csv"), (0,), 1),
            "names of files start at data.folder or, where that is not given, at the fol",
        ),
        ({}, HubDataset("no-such-folder/at-all", ("s",), "t"), "dataset no-such-folder/at-all"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_said_with_file_and_line(
    files: dict[str, bytes], corpus: Corpus, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        write(tmp_path, name, content)
    with pytest.raises(InvalidDataError) as error:
        list(corpus)
    assert message in str(error.value)
