"""The optimiser and its schedule are the paper's unless the recipe says otherwise."""

from pathlib import Path

import pytest
import torch
from transformers.optimization import get_scheduler

from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.training.preparation import prepare
from hf_vanilla.training.recipe import Recipe, RecipeError, load_recipe
from hf_vanilla.training.run import new_model, training_arguments

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(("size", "d_model"), [("base", 512), ("big", 1024)])
def test_learning_rate_is_equation_3_of_the_paper(tmp_path: Path, size: str, d_model: int) -> None:
    arguments = training_arguments(load_recipe(CONFIGS / f"wmt14_en_de_{size}.yaml"), tmp_path)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], arguments.learning_rate)
    schedule = get_scheduler(arguments.lr_scheduler_type, optimizer, arguments.get_warmup_steps(10**5), 10**5)
    for step in range(1, 20_000):
        optimizer.step()
        schedule.step()
        if step % 397 == 0 or step in (1, 3999, 4000, 4001):
            expected = d_model**-0.5 * min(step**-0.5, step * 4000**-1.5)
            assert schedule.get_last_lr()[0] == pytest.approx(expected, rel=1e-3)


def test_adam_is_that_of_section_5_3(tmp_path: Path) -> None:
    arguments = training_arguments(load_recipe(CONFIGS / "wmt14_en_de_base.yaml"), tmp_path)
    assert (arguments.adam_beta1, arguments.adam_beta2, arguments.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert arguments.weight_decay == 0
    assert arguments.report_to == []


def test_search_of_section_6_1_reaches_the_model(tmp_path: Path) -> None:
    from hf_vanilla.data.tokenizer import train_tokenizer

    recipe = load_recipe(CONFIGS / "wmt14_en_de_base.yaml", ["model.d_model=16", "model.d_ff=8"])
    model = new_model(recipe, train_tokenizer(["some text"], "character"))
    model.save_pretrained(tmp_path)
    found = type(model).from_pretrained(tmp_path).generation_config
    assert (found.num_beams, found.length_penalty, found.length_penalty_type) == (4, 0.6, "gnmt")
    assert found.max_length_beyond_source == 50


def quickstart(*changes: str) -> Recipe:
    return load_recipe(CONFIGS / "quickstart.yaml", ["data.train.size=40", "data.validation.size=5", *changes])


def test_a_preparation_that_failed_is_begun_again_and_one_that_is_complete_is_not(tmp_path: Path) -> None:
    with pytest.raises(InvalidDataError, match=r"split \('dev'\) must be one of"):
        prepare(quickstart("data.validation.split=dev"), tmp_path)
    fixed = quickstart("data.train.size=50")
    prepared = prepare(fixed, tmp_path)
    assert (len(prepared.train), len(prepared.validation)) == (50, 5)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    prepare(fixed, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with pytest.raises(RecipeError, match=r"data.train: size \(50 before, 40 now\)"):
        prepare(quickstart(), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
