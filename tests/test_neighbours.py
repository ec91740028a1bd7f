"""scripts/neighbours.py: each neighbour of a recipe is a recipe, and the table says how good the recipe itself is."""

import importlib.util
import json
from pathlib import Path

import pytest

from hf_vanilla.training.recipe import load_recipe

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("neighbours", ROOT / "scripts" / "neighbours.py")
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)


@pytest.mark.parametrize("name", ["quickstart", "multi30k_en_de"])
def test_every_neighbour_is_a_recipe_that_differs_in_one_respect(name: str) -> None:
    file = ROOT / "configs" / f"{name}.yaml"
    recipe = load_recipe(file)
    chosen = dict(script.neighbours(recipe))
    assert {"proposal", "vocab_size x2", "dropout +0.1", "width x0.5", "rate x2", "tokens x0.5"} <= set(chosen)
    for keys in chosen.values():
        changed = load_recipe(file, [f"{key}={value}" for key, value in keys.items()])
        assert {key: changed.keys[key] for key in keys} == keys
        assert bool(keys) == (changed.keys != recipe.keys)
    tokens = chosen["tokens x2"]
    assert tokens["training.max_tokens"] == 2 * recipe.training.max_tokens
    assert 2 * tokens["training.max_steps"] == recipe.arguments["max_steps"]


def test_the_table_compares_runs_that_are_finished(tmp_path: Path) -> None:
    recipe = load_recipe(ROOT / "configs" / "quickstart.yaml")
    runs = {name: tmp_path / name for name in ("proposal", "rate x2", "rate x0.5", "dropout +0.1")}
    for name, scores, is_finished in (
        ("proposal", [10.0, 48.0], True),
        ("rate x2", [50.0, 20.0], True),
        ("rate x0.5", [99.0], False),
    ):
        runs[name].mkdir()
        history = [{"loss": 1.0}, *({"eval_exact_match": score} for score in scores)]
        (runs[name] / "history.json").write_text(json.dumps(history))
        if is_finished:
            (runs[name] / "report.json").write_text("{}")
    lines = script.table(runs, recipe).splitlines()
    assert lines[0] == "2 of 4: best exact_match in validation"
    assert [line.split()[-1] for line in lines[1:3]] == ["48.00", "50.00"]
    assert lines[3] == "proposal has 96.0% of the best score"
    assert script.share_of_best({"proposal": 4.0, "other": 2.0}, greater_is_better=False) == 0.5
    assert script.share_of_best({"proposal": 0.0, "other": 0.0}, greater_is_better=True) == 1.0
