"""A run goes on with the text, tokenizer and recipe that it began with, whatever was moved, changed or deleted."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest

from hf_vanilla.data import contents
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.training import preparation
from hf_vanilla.training.preparation import Prepared, checksum_of_tokenizer, prepare
from hf_vanilla.training.recipe import Recipe, RecipeError, load_recipe

RECIPE = """
data:
  train: {source: train.en, target: train.de}
  validation: {file: validation.tsv, source: 0, target: 1}
tokenizer: {kind: bpe, vocab_size: 280}
training: {max_steps: 20, learning_rate: 0.001}
"""


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for side in ("en", "de"):
        (folder / f"train.{side}").write_text("".join(f"{side} sentence {number}\n" for number in range(30)))
    (folder / "validation.tsv").write_text("a sentence\tein Satz\n" * 3)
    return folder


def recipe(texts: Path, *changes: str) -> Recipe:
    file = texts.parent / "recipe.yaml"
    file.write_text(RECIPE)
    return load_recipe(file, [f"data.folder={texts}", *changes])


def checkpoint(run: Path) -> None:
    """As a training leaves one, but for the weights, which nothing here reads."""
    folder = run / "checkpoint-5"
    folder.mkdir()
    for file in run.glob("tokenizer*"):
        shutil.copy(file, folder)


def weights(run: Path) -> None:
    (run / "model.safetensors").touch()


@pytest.fixture
def run(tmp_path: Path, texts: Path) -> Path:
    """A run that is prepared."""
    prepare(recipe(texts), tmp_path / "run")
    return tmp_path / "run"


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ids_of(prepared: Prepared) -> list[object]:
    return [prepared.train["source_ids"][:], prepared.train["target_ids"][:], prepared.validation["target_ids"][:]]


def without_data(run: Path) -> None:
    shutil.rmtree(run / "data")


def without_data_and_tokenizer(run: Path) -> None:
    without_data(run)
    (run / "tokenizer.json").unlink()


def without_data_and_record(run: Path) -> None:
    without_data(run)
    (run / "prepared.json").unlink()


def as_it_is(run: Path) -> None:
    pass


DELETED = [as_it_is, without_data, without_data_and_tokenizer, without_data_and_record]
Change = Callable[[Path], None]


@pytest.mark.parametrize("trained", [checkpoint, weights])
@pytest.mark.parametrize("deleted", DELETED)
@pytest.mark.parametrize("change", ["training.learning_rate=1", "training.seed=5", "tokenizer.vocab_size=290"])
def test_where_there_are_weights_another_recipe_is_refused(
    texts: Path, run: Path, trained: Change, deleted: Change, change: str
) -> None:
    trained(run)
    deleted(run)
    before = files_in(run)
    with pytest.raises(RecipeError, match="was begun with another recipe"):
        prepare(recipe(texts, change), run)
    assert files_in(run) == before


@pytest.mark.parametrize("deleted", DELETED)
def test_where_data_was_deleted_it_becomes_the_same_again_with_the_same_tokenizer(
    texts: Path, run: Path, deleted: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = preparation.read_prepared(run)
    ids = ids_of(expected)
    checkpoint(run)
    deleted(run)
    monkeypatch.delattr(preparation, "train_tokenizer")
    found = prepare(recipe(texts), run)
    assert checksum_of_tokenizer(found.tokenizer) == checksum_of_tokenizer(expected.tokenizer)
    assert ids_of(found) == ids


def test_a_tokenizer_that_was_replaced_is_taken_back_from_a_checkpoint(texts: Path, run: Path, tmp_path: Path) -> None:
    expected = checksum_of_tokenizer(preparation.read_prepared(run).tokenizer)
    checkpoint(run)
    prepare(recipe(texts, "tokenizer.kind=character"), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "tokenizer.json", run)
    assert checksum_of_tokenizer(prepare(recipe(texts), run).tokenizer) == expected


def test_weights_without_their_tokenizer_do_not_go_on(texts: Path, run: Path) -> None:
    weights(run)
    (run / "tokenizer.json").unlink()
    with pytest.raises(RecipeError, match=r"begun with a tokenizer that is neither in tokenizer\.json nor in a checkp"):
        prepare(recipe(texts), run)


def test_what_does_not_become_the_same_again_is_refused(texts: Path, run: Path) -> None:
    checkpoint(run)
    without_data(run)
    record = json.loads((run / "prepared.json").read_text())
    record["encoded"]["train"]["ids"] = "another"  # as if another version had made them
    (run / "prepared.json").write_text(json.dumps(record))
    with pytest.raises(RecipeError, match=r"data\.train: encoded again it has 30 pairs of other tokens than the 30"):
        prepare(recipe(texts), run)
    assert not (run / "data" / "train.arrow").exists()


def moved(texts: Path) -> Path:
    return texts.rename(texts.with_name("elsewhere"))


def copied(texts: Path) -> Path:
    return Path(shutil.copytree(texts, texts.with_name("copy"), copy_function=shutil.copyfile))


def zipped(texts: Path) -> Path:
    for file in list(texts.glob("train.*")):
        with gzip.open(f"{file}.gz", "wb") as opened:
            opened.write(file.read_bytes())
        file.unlink()
    return texts


@pytest.mark.parametrize("move", [moved, copied, zipped])
@pytest.mark.parametrize("deleted", [as_it_is, without_data])
def test_the_same_text_elsewhere_goes_on(texts: Path, run: Path, move: Callable[[Path], Path], deleted: Change) -> None:
    ids = ids_of(preparation.read_prepared(run))
    checkpoint(run)
    deleted(run)
    place = move(texts)
    names = ["data.train={source: train.en.gz, target: train.de.gz}"] if move is zipped else []
    assert ids_of(prepare(recipe(place, *names), run)) == ids
    assert str(place) in (run / "recipe.yaml").read_text()


@pytest.mark.parametrize("name", ["train.de", "validation.tsv"])
@pytest.mark.parametrize("deleted", [as_it_is, without_data])
def test_text_that_was_changed_in_place_is_refused_and_named(
    texts: Path, run: Path, name: str, deleted: Change
) -> None:
    checkpoint(run)
    deleted(run)
    before, file = files_in(run), texts / name
    times = file.stat()
    file.write_text(file.read_text().replace("n", "m"))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # of the same size and time as before
    with pytest.raises(RecipeError, match=f"was begun with other data: changed is data.*: the text of {file};"):
        prepare(recipe(texts), run)
    assert files_in(run) == before


def test_another_choice_of_corpora_is_refused(texts: Path, run: Path) -> None:
    two = "data.validation=[{file: validation.tsv, source: 0, target: 1}, {file: validation.tsv, source: 0, target: 1}]"
    with pytest.raises(RecipeError, match=r"data\.validation: 1 corpora before, 2 now"):
        prepare(recipe(texts, two), run)
    with pytest.raises(RecipeError, match=r"data\.validation: target \(1 before, 0 now\)"):
        prepare(recipe(texts, "data.validation.target=0"), run)


def test_files_that_stayed_as_they_are_are_not_read_again(
    texts: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(contents, "checksum_of")
    prepare(recipe(texts), run)
    prepare(recipe(moved(texts)), run)


def test_text_that_is_gone_is_not_missed_once_it_is_encoded(
    texts: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved(texts)
    prepare(recipe(texts), run)
    assert "train.en: cannot be read: No such file or directory" in (said := capsys.readouterr().err)
    assert "going on with the pairs" in said
    with pytest.raises(RecipeError, match=r"data\.folder"):  # other names for what cannot be compared
        prepare(recipe(texts.with_name("nowhere")), run)
    without_data(run)
    with pytest.raises(InvalidDataError, match=r"train\.en: cannot be read"):
        prepare(recipe(texts), run)


def test_a_run_of_a_version_without_records_goes_on(texts: Path, run: Path) -> None:
    ids = ids_of(preparation.read_prepared(run))
    (run / "prepared.json").unlink()
    moved(texts)
    for _ in range(2):
        assert ids_of(prepare(recipe(texts), run)) == ids
    with pytest.raises(RecipeError, match=r"another recipe: data\.folder"):
        prepare(recipe(texts.with_name("elsewhere")), run)


def test_a_preparation_that_was_stopped_goes_on_with_its_tokenizer_only_if_the_text_is_the_same(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def stopped_in(step: str, chosen: Recipe) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(preparation, step, stop)
            with pytest.raises(KeyboardInterrupt):
                prepare(chosen, tmp_path / "run")

    stopped_in("encode", recipe(texts))
    stopped_in("train_tokenizer", recipe(texts, "training.seed=3"))
    stopped_in("encode", recipe(texts))
    (texts / "validation.tsv").write_text("another\ttext\n")
    stopped_in("train_tokenizer", recipe(texts))
    stopped_in("encode", recipe(texts))
    monkeypatch.delattr(preparation, "train_tokenizer")
    prepare(recipe(texts), tmp_path / "run")


def test_a_dataset_of_the_hub_is_compared_by_its_revision(
    texts: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = SimpleNamespace(revision="1234abcd")

    def builder(dataset: str, name: str | None, revision: str | None) -> object:
        if hub.revision is None:
            raise ConnectionError("no network")
        return SimpleNamespace(hash=revision or hub.revision)

    monkeypatch.setattr(datasets, "load_dataset_builder", builder)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: [{"en": "a b", "de": "c d"}] * 3)
    chosen = "data.train={dataset: our/pairs, source: en, target: de}"
    prepare(recipe(texts, chosen), tmp_path / "hub")
    prepare(recipe(texts, chosen), tmp_path / "hub")
    hub.revision = None
    prepare(recipe(texts, chosen), tmp_path / "hub")
    assert "no network; going on with the pairs that were encoded before" in capsys.readouterr().err
    hub.revision = "5678"
    with pytest.raises(RecipeError, match=r"data\.train: revision \(1234abcd before, 5678 now\)"):
        prepare(recipe(texts, chosen), tmp_path / "hub")
    prepare(recipe(texts, chosen, "data.train.revision=1234abcd"), tmp_path / "hub")


def test_a_local_folder_of_datasets_is_compared_by_its_files(texts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "pairs.jsonl").write_text('{"en": "a b", "de": "c d"}\n' * 3)

    def chosen(place: Path) -> Recipe:
        return recipe(texts, f"data.train={{dataset: {place}, source: en, target: de}}")

    prepare(chosen(folder), tmp_path / "run")
    folder = folder.rename(tmp_path / "moved")
    prepare(chosen(folder), tmp_path / "run")
    (folder / "pairs.jsonl").write_text('{"en": "a b", "de": "c e"}\n' * 3)
    with pytest.raises(RecipeError, match=f"data.train: the text of {folder}"):
        prepare(chosen(folder), tmp_path / "run")
