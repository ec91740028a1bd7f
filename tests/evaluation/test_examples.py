"""Test sets are what their files and pairs say, and files that do not belong together are refused by name."""

import gzip
import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_vanilla.data.corpus import Pair
from hf_vanilla.data.errors import InvalidDataError, TextWarning
from hf_vanilla.evaluation.examples import Files, examples_of, read_examples, read_lines, read_translations


def write(folder: Path, **texts: str) -> list[Path]:
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
    return [folder / name for name in texts]


def pairs(*sources_and_targets: tuple[str, str]) -> list[Pair]:
    return [Pair((source,), target, "") for source, target in sources_and_targets]


def test_each_pair_is_an_example() -> None:
    found = examples_of("test", pairs(("a", "1"), ("b", "2"), ("a", "3")), first_row=10)
    assert found.references == [["1"], ["2"], ["3"]]
    assert list(found.rows) == [10, 11, 12]
    assert found.of([*"..........xyz"]) == ["x", "y", "z"]


def test_a_grouped_source_is_one_example_with_all_its_targets() -> None:
    found = examples_of("test", pairs(("a", "1"), ("b", "2"), ("a", "3")), first_row=1, grouped=True)
    assert (found.sources, found.references) == ([("a",), ("b",)], [["1", "3"], ["2"]])
    assert found.of(["-", "x", "y", "z"]) == ["x", "y"]


def test_sources_with_different_prefixes_are_not_grouped() -> None:
    given = [Pair(("a",), target, "", prefix=target[0]) for target in ("x1", "y1", "x2")]
    found = examples_of("test", given, grouped=True)
    assert found.references == [["x1", "x2"], ["y1"]]


def test_several_files_are_several_test_sets_with_rows_after_each_other(tmp_path: Path) -> None:
    source, one, two, hypothesis = write(tmp_path, source="a\tb\nc\n", one="1\n2\n", two="3\n4\n", hypothesis="5\n6")
    sets = [Files("x", (one, two), source, hypothesis), Files("y", (two,), None, one)]
    (first, second), translations = read_examples(sets)
    assert first.sources == [("a\tb",), ("c",)]
    assert first.references == [("1", "3"), ("2", "4")]
    assert second.sources is None
    assert (first.of(translations), second.of(translations)) == (["5", "6"], ["1", "2"])


def test_tabs_separate_the_parts_of_a_source_if_it_has_several(tmp_path: Path) -> None:
    source, reference = write(tmp_path, source="walk\tPAST\n", reference="walked\n")
    (found,), _ = read_examples([Files("x", (reference,), source)], parts=2)
    assert found.sources == [("walk", "PAST")]


def test_columns_are_those_that_a_translator_reads(tmp_path: Path) -> None:
    source, reference = write(tmp_path, source="a\tb\tc\n\nd\ne\n", reference="1\n2\n3\n4\n")
    with pytest.warns(TextWarning, match="source:3: has 1 columns, separated by tabs, .* trained on 2") as warned:
        (found,), _ = read_examples([Files("x", (reference,), source)], parts=2)
    assert found.sources == [("a", "b\tc"), ("", ""), ("d", ""), ("e", "")]
    assert len(warned) == 1


def test_lines_end_only_at_line_feeds_and_may_be_gzipped_or_from_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\ufeffone\r\n\n  two \u2028 \x0b\x85 \r three\t\n"
    lines = ["one", "", "  two \u2028 \x0b\x85 \r three\t"]
    (plain,) = write(tmp_path, plain=text)
    (tmp_path / "zipped.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    for file in (plain, tmp_path / "zipped.gz", Path("-")):
        assert read_lines(file) == lines


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    empty, two, three, many = write(tmp_path, empty="", two="1\n2", three="1\n2\n3\n", many="x\n" * 1200)
    (tmp_path / "latin").write_bytes(b"ok\nStra\xdfe\n")
    cases = [
        ([empty], "empty: is empty; there must be at least one line"),
        ([two, three], "three has 3 lines, but .*two has 2: line n of one must belong to line n of another"),
        ([many, two], "two has 2 lines, but .*many has 1,200"),
        ([tmp_path / "latin"], r"latin:2: byte 5 is not UTF-8 \(0xdf\)"),
        ([tmp_path / "nowhere"], "nowhere: cannot be read: No such file"),
        ([tmp_path], "cannot be read: Is a directory"),
    ]
    for files, message in cases:
        with pytest.raises(InvalidDataError, match=message):
            read_examples([Files("x", tuple(files))])


def test_translations_by_another_system_have_a_line_for_each_example(tmp_path: Path) -> None:
    two, three = write(tmp_path, two="1\n2", three="3\n4\n5\n")
    assert read_translations([two, three], {"a": 2, "b": 3}) == [*"12345"]
    with pytest.raises(InvalidDataError, match="three has 3 lines, but a has 2"):
        read_translations([three, two], {"a": 2, "b": 3})
    with pytest.raises(InvalidDataError, match=r"--against: 1 for 2 test sets; give one run, or one file"):
        read_translations([two], {"a": 2, "b": 3})
