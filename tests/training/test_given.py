"""From files to the section `data`: separators, columns, symbols and languages are found, what is no text is named."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.training.given import Given, data_section, symbols_in
from hf_vanilla.training.recipe import load_recipe

LEMMAS = ["gehen", "laufen", "singen", "rufen", "lesen", "sehen"] * 4
FORMS = [f"{lemma}st" for lemma in LEMMAS]
FEATURES = ["V;2;SG;PRS", "V;1;SG;PST", "V;3;PL;PRS"] * 8
SOUNDS = ["G EY N", "L AH F", "S IH NG"] * 8
SENTENCES = [f"die Leute {lemma} heute" for lemma in LEMMAS]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, *columns: list[str], header: str = "", separator: str = "\t") -> str:
    lines = [separator.join(cells) for cells in zip(*columns, strict=True)]
    text = "".join(f"{line}\n" for line in [*([header] if header else []), *lines])
    Path(name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return name


def pairs_of(data: dict[str, Any], folder: Path) -> list[tuple[tuple[str, ...], str]]:
    recipe = folder / "recipe.yaml"
    recipe.write_text(json.dumps({"data": data | {"validation": data["train"]}}))
    return [(pair.source, pair.target) for corpus in load_recipe(recipe).data.train for pair in corpus]


def test_two_files_with_their_languages_relative_to_the_recipe(here: Path) -> None:
    Path("texts").mkdir()
    files = write("texts/train.en.gz", SENTENCES), write("texts/train.de", FORMS)
    data = data_section(Given(files, test=files), here / "recipes")
    corpus = {"source": "../texts/train.en.gz", "target": "../texts/train.de"}
    assert data == {"train": corpus, "test": corpus, "source_language": "en", "target_language": "de"}


@pytest.mark.parametrize(
    ("name", "separator", "header", "expected"),
    [
        ("a.tsv", "\t", "", {"source": 0, "target": 1}),
        ("a.tsv.gz", "\t", "source\ttarget", {"source": "source", "target": "target"}),
        ("a.txt", "\t", "", {"source": 0, "target": 1}),
        ("a.csv", ",", "de,en", {"source": "de", "target": "en"}),
        ("a.csv", ";", "English;German", {"separator": ";", "source": "English", "target": "German"}),
        ("a.txt", " ||| ", "", {"separator": " ||| ", "source": 0, "target": 1}),
        ("a.train", "  ", "", {"separator": "  ", "source": 0, "target": 1}),
    ],
)
def test_tables_of_text(here: Path, name: str, separator: str, header: str, expected: dict[str, Any]) -> None:
    data = data_section(Given((write(name, LEMMAS, FORMS, header=header, separator=separator),)), here)
    assert data == {"train": {"file": name} | expected}
    assert pairs_of(data, here) == [((lemma,), form) for lemma, form in zip(LEMMAS, FORMS, strict=True)]


def test_cells_of_csv_may_have_separators_and_line_breaks(here: Path) -> None:
    Path("a.csv").write_text('source,target\n"a, b\nc",d\n')
    assert pairs_of(data_section(Given(("a.csv",)), here), here) == [(("a, b\nc",), "d")]


@pytest.mark.parametrize("kind", ["jsonl", "translation", "parquet"])
def test_tables_with_names(here: Path, kind: str) -> None:
    rows = [{"en": lemma, "de": form} for lemma, form in zip(LEMMAS, FORMS, strict=True)]
    name = "a.parquet" if kind == "parquet" else "a.jsonl"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), name)
    else:
        Path(name).write_text("".join(json.dumps({kind: row} if kind != "jsonl" else row) + "\n" for row in rows))
    data = data_section(Given((name,)), here)
    assert data == {"train": {"file": name, "source": "en", "target": "de"}}
    assert pairs_of(data, here)[0] == (("gehen",), "gehenst")


def test_a_local_folder_is_a_dataset_with_its_splits(here: Path) -> None:
    Path("folder").mkdir()
    for split in ("train", "test"):
        write(f"folder/{split}.csv", LEMMAS, FORMS, header="de,en", separator=",")
    data = data_section(Given(("folder",)), here)
    assert data["test"] == {"dataset": "folder", "split": "test", "source": "de", "target": "en"}
    assert pairs_of(data, here)[0] == (("gehen",), "gehenst")


@pytest.mark.parametrize("order", [(LEMMAS, FORMS, FEATURES), (LEMMAS, FEATURES, FORMS)])
def test_inflection_is_known_by_its_features(here: Path, order: tuple[list[str], ...]) -> None:
    data = data_section(Given((write("a.tsv", *order),)), here)
    features, form = (2, 1) if order[2] is FEATURES else (1, 2)
    symbols = {"column": features, "as": "words", "separator": ";"}
    assert data == {"train": {"file": "a.tsv", "source": [0, symbols], "target": form}}


def test_phonemes_are_symbols_and_words_are_not(here: Path) -> None:
    data = data_section(Given((write("a.tsv", LEMMAS, SOUNDS),)), here)
    assert data["train"] == {"file": "a.tsv", "source": 0, "target": {"column": 1, "as": "words"}}
    files = write("a.words", LEMMAS), write("a.sounds", SOUNDS)
    assert data_section(Given(files), here)["train"]["target"] == {"file": "a.sounds", "as": "words"}
    assert symbols_in(SENTENCES) is None
    assert symbols_in(LEMMAS) is None
    assert symbols_in([f"{chr(97 + n % 26)}{n} x" for n in range(400)]) is None  # too many different ones


def test_columns_that_are_named_are_taken(here: Path) -> None:
    write("a.tsv", LEMMAS, SENTENCES, FORMS)
    named = Given(("a.tsv",), source_columns=("0", "1"), target_column="2")
    assert data_section(named, here)["train"] == {"file": "a.tsv", "source": [0, 1], "target": 2}
    write("b.tsv", LEMMAS, SENTENCES, FORMS, header="x\ty\tz")
    named = Given(("b.tsv",), source_columns=("y",), target_column="z")
    assert data_section(named, here)["train"] == {"file": "b.tsv", "source": "y", "target": "z"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "b.de: there is no such file"),
        (b"", "b.de: is empty"),
        (b"\n \n", "b.de: is empty"),
        (b"\x1f\x8bxyz", "b.de: is compressed by gzip; give it a name that ends in .gz"),
        ("häuser\n".encode("latin-1"), "b.de:1: byte 2 is not UTF-8 (0xe4)"),
        (b"P\0NG\0\n", "b.de: is binary or UTF-16, and not text in UTF-8"),
    ],
)
def test_what_is_no_text_is_one_message(here: Path, content: bytes | None, message: str) -> None:
    write("a.en", LEMMAS)
    if content is not None:
        Path("b.de").write_bytes(content)
    with pytest.raises(InvalidDataError) as error:
        data_section(Given(("a.en", "b.de")), here)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Given(("one.txt",)), "one.txt: has one column; give the file of the targets, too"),
        (Given(("three.tsv",)), "three.tsv: its columns are 0, 1, 2; say which are meant by --source-column"),
        (Given(("three.tsv",), ("three.tsv", "one.txt")), "--validation: has 2 files, where there are 1 for training"),
        (Given(("three.tsv",), source_columns=("0",), target_column="3"), "has no column '3'; its columns are 0, 1, 2"),
        (Given(("a.csv", "a.csv")), "a.csv: is a table, which has both sides"),
        (Given(("missing.tsv",)), "missing.tsv: there is no such file"),
        (Given(("./missing",)), "missing: there is no such file"),
        (Given((".", "one.txt")), ".: is a folder; name the file in it"),
    ],
)
def test_what_cannot_be_guessed_is_asked_for(here: Path, given: Given, message: str) -> None:
    write("one.txt", SENTENCES)
    write("three.tsv", LEMMAS, FORMS, LEMMAS)
    write("a.csv", LEMMAS, FORMS, separator=",")
    with pytest.raises(InvalidDataError) as error:
        data_section(given, here)
    assert message in str(error.value)


@pytest.mark.parametrize("named", [{"source_columns": ("y",)}, {"target_column": "x"}])
def test_of_two_columns_one_that_is_named_says_which_the_other_is(here: Path, named: dict[str, Any]) -> None:
    write("a.csv", SENTENCES, FORMS, header="x,y", separator=",")
    assert data_section(Given(("a.csv",), **named), here)["train"] == {"file": "a.csv", "source": "y", "target": "x"}
    write("b.tsv", SENTENCES, FORMS, LEMMAS)
    with pytest.raises(InvalidDataError, match="say which are meant by --source-column"):
        data_section(Given(("b.tsv",), source_columns=("2",)), here)
    several = data_section(Given(("b.tsv",), source_columns=("2", "0")), here)["train"]
    assert several == {"file": "b.tsv", "source": [2, 0], "target": 1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Given(("a.en", "b.de"), source_columns=("7",)), "--source-column and --target-column are of a table"),
        (Given(("a.en", "b.de"), name="de-en"), "--name de-en: is of a dataset, and a.en is a file"),
        (Given(("folder",), validation=("dev",)), "--validation dev: folder has no such split, but train, test"),
    ],
)
def test_what_has_no_effect_is_refused(here: Path, given: Given, message: str) -> None:
    write("a.en", SENTENCES)
    write("b.de", SENTENCES)
    Path("folder").mkdir()
    for split in ("train", "test"):
        write(f"folder/{split}.csv", SENTENCES, FORMS, header="source,target", separator=",")
    with pytest.raises(InvalidDataError) as error:
        data_section(given, here)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", '"open,b\n' + "c,d\n" * 3000, "a.csv: no row of its beginning ends"),
        ("a.jsonl", "[" * 100_000, "a.jsonl:1: is not a line of JSON"),
        ("a.jsonl", '{"a": ' + "9" * 5000 + "}", "a.jsonl:1: is not a line of JSON"),
    ],
)
def test_a_broken_table_is_one_message(here: Path, name: str, content: str, message: str) -> None:
    Path(name).write_text(content)
    with pytest.raises(InvalidDataError) as error:
        data_section(Given((name,)), here)
    assert message in str(error.value)


def test_a_folder_whose_files_do_not_fit_together_is_one_message(here: Path) -> None:
    Path("folder").mkdir()
    write("folder/train.csv", SENTENCES, FORMS, header="source,target", separator=",")
    write("folder/test.csv", SENTENCES, FORMS, header="question,answer", separator=",")
    with pytest.raises(InvalidDataError, match="folder: there is no such file or folder, and as a dataset: ") as error:
        data_section(Given(("folder",)), here)
    assert "\n" not in str(error.value)
