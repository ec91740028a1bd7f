"""What is in a run directory has its name in one place, and no other directory is taken for one."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hf_vanilla
from hf_vanilla import run_directory
from hf_vanilla.run_directory import NotARunError, refuse_foreign
from hf_vanilla.training.check import check
from hf_vanilla.training.recipe import load_recipe
from hf_vanilla.training.run import train

PACKAGE = Path(hf_vanilla.__file__).parent
QUICKSTART = PACKAGE.parent / "configs" / "quickstart.yaml"


def test_no_other_module_writes_a_name_of_the_run_directory() -> None:
    names = [value for key, value in vars(run_directory).items() if key.isupper() and isinstance(value, str)]
    assert {"recipe.yaml", "report.json", "model.safetensors", "checkpoint-"} <= set(names)
    names.remove("data")  # also a section of a recipe
    names.remove("alignment")  # also in the files of the model, which import nothing else of ours
    literal = re.compile("|".join(f"[\"']{re.escape(name)}" for name in names))
    found = {file.name: literal.findall(file.read_text()) for file in PACKAGE.rglob("*.py")}
    assert [name for name, literals in found.items() if literals] == ["run_directory.py"]


@pytest.mark.parametrize(
    "contents",
    [
        ["recipe.yaml", "README.md"],  # somebody's own
        ["model.safetensors", "config.json"],  # another model
        ["checkpoint-5/model.safetensors", "trainer_state.json"],  # another training
        [".lock", "notes.txt"],
        ["checkpoint-5/manifest.json", ".lock"],
        ["unfinished/thoughts.txt"],
        ["recipe.yaml.partial"],
    ],
    ids=", ".join,
)
def test_a_directory_with_other_contents_is_refused_and_stays_as_it_is(tmp_path: Path, contents: list[str]) -> None:
    folder = filled(tmp_path / "mine", contents)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    recipe = load_recipe(QUICKSTART, ["data.train.split=nowhere"])
    for start in (partial(train, translate=nothing, score=nothing), check):
        with pytest.raises(
            NotARunError, match=r"is not empty .* and not a run directory of hf_vanilla: choose another"
        ):
            start(recipe, folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def filled(folder: Path, contents: list[str]) -> Path:
    folder.mkdir()
    for name in contents:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("something")
    return folder


def nothing(*_: object) -> Any:
    raise AssertionError("is not to be called")


@pytest.mark.parametrize(
    "contents",
    [
        [],
        [".lock"],  # killed before anything else was written
        [".lock", "recipe.yaml.partial"],
        [".lock", "unfinished/seen-1"],
        [".lock", "recipe.yaml"],
        [".lock", "recipe.yaml", "tokenizer.json", "data/train.arrow.partial"],
        ["recipe.yaml", "history.json", "model.safetensors"],  # copied without what begins with a dot
        ["recipe.yaml", "checkpoint-5/manifest.json"],
    ],
    ids=", ".join,
)
def test_a_run_is_known_however_early_it_was_killed(tmp_path: Path, contents: list[str]) -> None:
    refuse_foreign(filled(tmp_path / "run", contents))


def test_a_file_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotARunError, match="is a file: choose another --output"):
        refuse_foreign(tmp_path / "file")
