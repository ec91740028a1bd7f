"""Recipes, presets and launcher files are found by their names, and recipes say what they need and reach."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hf_vanilla.training import shipped
from hf_vanilla.training.recipe import load_recipe
from hf_vanilla_cli import main
from hf_vanilla_cli.shared import NameOrPath

CONFIGS = Path(__file__).parents[2] / "configs"


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize("name", shipped.names())
def test_every_recipe_says_what_it_is_needs_and_reaches(name: str) -> None:
    recipe = shipped.describe(name)
    for said in (recipe.about, recipe.needs, recipe.reaches):
        assert len(said) > 20
        assert said.endswith((".", ").", '".'))
    assert "Needs" not in recipe.about


def test_names_are_those_of_the_files() -> None:
    assert {f"{name}.yaml" for name in shipped.names()} == {file.name for file in CONFIGS.glob("*.yaml")}
    assert shipped.find("quickstart") == CONFIGS / "quickstart.yaml"
    assert shipped.named("accelerate/ddp") == CONFIGS / "accelerate" / "ddp.yaml"
    assert shipped.preset("tiny")["d_model"] == 128


def test_a_file_wins_over_a_name_and_a_folder_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quickstart").mkdir()
    assert shipped.find("quickstart") == CONFIGS / "quickstart.yaml"
    Path("g2p_cmudict").write_text("data: {}")
    assert shipped.find("g2p_cmudict") == Path("g2p_cmudict")


def test_commands_take_names_and_paths() -> None:
    recipe = NameOrPath(exists=True, dir_okay=False, path_type=Path)
    for given in ("quickstart", str(CONFIGS / "quickstart.yaml")):
        assert recipe.convert(given, None, None) == CONFIGS / "quickstart.yaml"


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(FileNotFoundError, match="no file and no recipe 'quikstart'; did you mean 'quickstart'"):
        shipped.find("quikstart")
    with pytest.raises(FileNotFoundError, match="no preset 'tinny'; did you mean 'tiny'"):
        shipped.preset("tinny")


def test_an_unknown_name_is_a_usage_error_of_every_command_with_a_recipe() -> None:
    for arguments in (["train"], ["check"], ["benchmark", "training"], ["benchmark", "beside"]):
        done = command(*arguments, "multi30k_en_dee")
        assert done.exit_code == 2
        assert "did you mean 'multi30k_en_de'?" in done.output


def test_recipes_are_listed_as_text_and_as_json() -> None:
    listed = command("recipes").output
    facts = {recipe["name"]: recipe for recipe in json.loads(command("recipes", "--json").stdout)}
    assert set(facts) == set(shipped.names())
    for name, recipe in facts.items():
        assert f"\n{name}\n" in f"\n{listed}"
        assert f"  Reaches: {recipe['reaches']}\n" in listed
        assert Path(recipe["path"]) == CONFIGS / f"{name}.yaml"


def test_the_path_of_a_launcher_file_is_all_that_is_printed() -> None:
    assert command("recipes", "--path", "accelerate/ddp").stdout == f"{CONFIGS / 'accelerate' / 'ddp.yaml'}\n"
    assert "did you mean 'accelerate/ddp'" in command("recipes", "--path", "ddp").output


def test_a_copy_of_a_recipe_is_the_recipe_and_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("init", "--like", "quickstart").exit_code == 0
    assert load_recipe(Path("quickstart.yaml")).data == load_recipe(CONFIGS / "quickstart.yaml").data
    Path("quickstart.yaml").write_text("mine")
    refused = command("init", "--like", "quickstart")
    assert refused.exit_code == 1
    assert "quickstart.yaml is there already, and nothing is written over: give another --output" in refused.output
    assert Path("quickstart.yaml").read_text() == "mine"
    assert command("init", "--like", "accelerate/ddp", "--output", "new/mine.yaml").exit_code == 0
    assert Path("new/mine.yaml").read_text() == (CONFIGS / "accelerate" / "ddp.yaml").read_text()
