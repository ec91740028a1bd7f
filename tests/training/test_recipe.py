"""A recipe is checked whole before anything is trained: each mistake is one message that names key and value."""

import copy
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.data.corpus import HubDataset, ParallelText, Table
from hf_vanilla.training.recipe import RecipeError, load_recipe, refuse_another_recipe
from hf_vanilla.training.run import training_arguments

FAST_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
CONFIGS = Path(__file__).parents[2] / "configs"
RECIPES = sorted(CONFIGS.glob("*.yaml"))
MINIMAL: dict[str, Any] = {
    "data": {"train": {"source": "a.en", "target": "a.de"}, "validation": {"file": "b.tsv", "source": 0, "target": 1}},
    "tokenizer": {"kind": "bpe", "vocab_size": 500},
    "model": {"d_model": 32, "num_heads": 4},
    "training": {"max_tokens": 500, "max_steps": 10, "learning_rate": 0.001},
    "generation": {"num_beams": 2},
}


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    file = tmp_path / "minimal.yaml"
    file.write_text(yaml.safe_dump(MINIMAL))
    return file


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_every_shipped_recipe_is_right_and_its_model_can_be_built(file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(file)
    training_arguments(recipe, tmp_path)
    VanillaForConditionalGeneration(VanillaConfig(vocab_size=100, **recipe.model))
    header = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert any("hf-vanilla train" in line for line in header)


def test_sections_become_what_they_say(minimal: Path) -> None:
    recipe = load_recipe(minimal, ["data.folder=/texts", "data.test={dataset: wmt14, source: en, target: de}"])
    assert recipe.data.train == (ParallelText(Path("/texts/a.en"), Path("/texts/a.de")),)
    assert recipe.data.validation == (Table(Path("/texts/b.tsv"), (0,), 1),)
    assert recipe.data.test == (HubDataset("wmt14", ("en",), "de"),)
    assert recipe.training.max_tokens == 500
    assert recipe.arguments == {"max_steps": 10, "learning_rate": 0.001}
    assert recipe.tokenizer.vocab_size == 500


def test_several_corpora_and_several_columns(minimal: Path) -> None:
    corpora = "[{file: a.tsv, source: [lemma, tags], target: form}, {source: a, target: b}]"
    recipe = load_recipe(minimal, [f"data.train={corpora}"])
    assert recipe.data.train == (
        Table(minimal.parent / "a.tsv", ("lemma", "tags"), "form"),
        ParallelText(minimal.parent / "a", minimal.parent / "b"),
    )


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("training.learning_rate=5e-3", "learning_rate", 0.005),
        ("training.learning_rate=1E-4", "learning_rate", 1e-4),
        ("training.eval_strategy=no", "eval_strategy", "no"),
        ("training.warmup_steps=40", "warmup_steps", 40.0),
        ("training.bf16=true", "bf16", True),
        ("training.adam_epsilon=1.e-9", "adam_epsilon", 1e-9),
    ],
)
def test_overrides_are_yaml_as_people_write_it(minimal: Path, override: str, key: str, value: object) -> None:
    found = load_recipe(minimal, [override]).arguments[key]
    assert (found, type(found)) == (value, type(value))


def test_the_text_of_a_recipe_is_the_recipe(minimal: Path, tmp_path: Path) -> None:
    recipe = load_recipe(minimal, ["training.max_steps=7", "model.dropout=0.3"])
    again = tmp_path / "again.yaml"
    again.write_text(recipe.text)
    assert load_recipe(again) == recipe


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.learing_rate=1", "training: there is no key 'learing_rate'; did you mean 'learning_rate'?"),
        ("training.max_token=1", "training: there is no key 'max_token'; did you mean 'max_tokens'?"),
        ("model.d_modle=1", "model: there is no key 'd_modle'; did you mean 'd_model'?"),
        ("generation.num_beam=1", "generation: there is no key 'num_beam'; did you mean 'num_beams'?"),
        ("tokenizer.kinds=bpe", "tokenizer: there is no key 'kinds'; did you mean 'kind'?"),
        ("data.trian={}", "data: there is no key 'trian'; did you mean 'train'?"),
        ("data.train.sorce=a", "data.train: there is no key 'sorce'; did you mean 'source'?"),
        ("data.train=[{source: a}]", "data.train.target: is missing"),
        ("data.train=a.en", "data.train: must be a mapping of keys to values, not 'a.en'"),
        ("model.d_model=30", "model: ValueError: d_model (30) must be divisible by num_heads (4)"),
        ("model.dropout=much", "model.dropout: 'much' is str, expected float or int"),
        (
            "tokenizer.kind=words",
            "tokenizer.kind: 'words' is str, expected one of 'bpe', 'character', 'word', 'hybrid'",
        ),
        ("training.max_steps=1.5", "training.max_steps: 1.5 is float, expected int"),
        ("training.max_steps=true", "training.max_steps: True is bool, expected int"),
        (
            "training.output_dir=x",
            "training.output_dir: cannot be set: the run directory is --output of hf-vanilla train",
        ),
        ("training.push_to_hub=true", "training.push_to_hub: cannot be True: training would publish its text"),
        (
            "training.save_only_model=true",
            "training.save_only_model: cannot be True: would leave nothing to go on from",
        ),
        ("tokenizer.vocab_size=-5", "tokenizer.vocab_size: -5 must be at least 1"),
        ("tokenizer.dropout=1", "tokenizer.dropout: 1.0 must be at least 0 and less than 1"),
        ("training.max_tokens=100", "training.max_tokens: 100 is too few for the longest text"),
        ("training.average_checkpoints=0", "training.average_checkpoints: 0 must be at least 1"),
        ("training.early_stopping_patience=0", "training.early_stopping_patience: 0 must be at least 1"),
        ("modle.d_model=3", "'modle.d_model=3': an override is section.key=value"),
        ("training.max_steps", "'training.max_steps': an override is section.key=value"),
        ("training.max_steps=[", "'training.max_steps=[': '[' is not YAML"),
        ("training.max_steps.x=1", "training.max_steps.x: must be a mapping"),
    ],
)
def test_a_mistake_is_one_message_that_names_key_and_value(minimal: Path, override: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(minimal, [override])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["eval_strategy=no", "early_stopping_patience=3"], "early_stopping_patience: 3 needs validations"),
        (["eval_strategy=no", "load_best_model_at_end=true"], "load_best_model_at_end: True needs validations"),
        (["eval_strategy=no", "save_strategy=best"], "save_strategy: 'best' needs validations: set training.eval_str"),
        (["eval_strategy=no", "average=best", "average_checkpoints=2"], "average: 'best' needs validations"),
        (
            ["eval_strategy=epoch", "average=best", "average_checkpoints=2"],
            "average: 'best' needs checkpoints that were validated: training.save_strategy ('steps') must be what "
            "training.eval_strategy is ('epoch')",
        ),
        (["save_strategy=no", "average_checkpoints=2"], "average_checkpoints: 2 needs checkpoints"),
        (
            ["save_total_limit=2", "average_checkpoints=3"],
            "save_total_limit: 2 is fewer than training.average_checkpoints (3)",
        ),
        (["load_best_model_at_end=true", "average_checkpoints=2"], "load_best_model_at_end: True has no effect"),
        (
            ["load_best_model_at_end=true", "save_strategy=no"],
            "load_best_model_at_end: True needs checkpoints, and training.save_strategy is 'no'",
        ),
        (
            ["num_train_epochs=3"],
            "num_train_epochs: 3 has no effect beside training.max_steps (10): set training.max_steps to -1",
        ),
        (["lr_scheduler_type=constant", "warmup_steps=5"], "warmup_steps: 5 has no effect: training.lr_scheduler_type"),
        (["dataloader_prefetch_factor=2"], "dataloader_prefetch_factor: 2 has no effect: set training.dataloader_num"),
        (["dataloader_persistent_workers=true"], "dataloader_persistent_workers: True has no effect"),
        (["run_name=a"], "run_name: 'a' has no effect: set training.report_to, or take it out"),
        (["gradient_checkpointing_kwargs={}"], "gradient_checkpointing_kwargs: {} has no effect"),
        (["max_steps=0"], "max_steps: 0 must be at least 1, or -1 to train for training.num_train_epochs"),
        (["max_steps=-1", "num_train_epochs=0"], "num_train_epochs: 0.0 must be more than 0"),
        (["learning_rate=-1"], "learning_rate: -1.0 must be at least 0"),
        (["learning_rate=.nan"], "learning_rate: nan must be finite"),
        (["adam_beta2=1"], "adam_beta2: 1.0 must be less than 1"),
        (["weight_decay=-1"], "weight_decay: -1.0 must be at least 0"),
        (["seed=-1"], "seed: -1 must be at least 0"),
        (["seed=4294967296"], "seed: 4294967296 must be less than 4294967296"),
        (["gradient_accumulation_steps=0"], "gradient_accumulation_steps: 0 must be at least 1"),
        (["save_total_limit=0"], "save_total_limit: 0 must be at least 1"),
        (["dataloader_num_workers=-1"], "dataloader_num_workers: -1 must be at least 0"),
        (["eval_steps=0"], "eval_steps: 0.0 must be more than 0"),
    ],
)
def test_what_would_do_nothing_or_fail_after_the_training_is_refused(
    minimal: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(minimal, [f"training.{override}" for override in overrides])
    assert message in str(error.value)
    assert str(error.value).startswith("training.")


def test_options_may_be_switched_off_on_the_command_line(minimal: Path) -> None:
    """What a switch leaves without effect is not refused: who trains without validations need not clear eval_steps."""
    recipe = ["training.metric_for_best_model=bleu", "training.eval_steps=5", "training.save_steps=5"]
    load_recipe(minimal, [*recipe, "training.eval_strategy=no", "training.save_strategy=no"])
    load_recipe(minimal, ["training.dataloader_persistent_workers=false", "training.load_best_model_at_end=false"])


def test_a_number_of_steps_replaces_the_number_of_epochs_in_the_file(minimal: Path) -> None:
    minimal.write_text(minimal.read_text().replace("max_steps: 10", "num_train_epochs: 10"))
    assert load_recipe(minimal).arguments["num_train_epochs"] == 10
    assert "num_train_epochs" not in load_recipe(minimal, ["training.max_steps=5"]).arguments


def test_texts_may_not_be_longer_than_learned_positions(minimal: Path) -> None:
    overrides = ["model.position_embedding_type=learned", "model.max_position_embeddings=200"]
    with pytest.raises(RecipeError, match=r"data.max_source_length: 256 is more than the model's learned positions"):
        load_recipe(minimal, overrides)
    load_recipe(minimal, [*overrides, "data.max_source_length=200", "data.max_target_length=200"])


def test_null_means_that_a_key_is_not_set(minimal: Path) -> None:
    recipe = load_recipe(minimal, ["training.metric_for_best_model=bleu", "training.greater_is_better=null"])
    assert recipe.greater_is_better
    assert not load_recipe(minimal, ["training.metric_for_best_model=null"]).greater_is_better


def test_a_training_may_get_longer_only_where_its_learning_rates_stay(minimal: Path, tmp_path: Path) -> None:
    def refused(*overrides: str) -> bool:
        begun = tmp_path / "begun.yaml"
        begun.write_text(load_recipe(minimal, overrides).text)
        try:
            refuse_another_recipe(load_recipe(minimal, [*overrides, "training.max_steps=20"]), begun)
        except RecipeError as error:
            assert "training.max_steps (10 before, 20 now)" in str(error)  # noqa: PT017
            return True
        return False

    assert not refused("training.warmup_steps=5")
    assert not refused("training.lr_scheduler_type=constant")
    assert refused("training.warmup_steps=0.5")
    assert refused("training.warmup_steps=5", "training.lr_scheduler_type=linear")


def test_an_empty_section_is_one_that_is_not_there(minimal: Path, tmp_path: Path) -> None:
    expected = load_recipe(minimal, ["generation.num_beams=2"])
    minimal.write_text(minimal.read_text().replace("generation:\n  num_beams: 2\n", "generation:\n"))
    assert replace(load_recipe(minimal, ["generation.num_beams=2"]), text=expected.text) == expected
    begun = tmp_path / "recipe.yaml"
    begun.write_text(minimal.read_text())
    refuse_another_recipe(load_recipe(minimal), begun)


@pytest.mark.parametrize("text", ["[1, 2]", "data: 5", "data: {}", "models: {}", "a: [", "\x00", "5: 3", ""])
def test_a_file_that_is_no_recipe_is_one_message(tmp_path: Path, text: str) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError):
        load_recipe(file)


def mutated(recipe: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """One to three times, anywhere: another value, another name, or no more."""
    values = [
        None,
        True,
        -1,
        0,
        3,
        1.5,
        1e30,
        float("nan"),
        "",
        "x",
        "1",
        [],
        [1],
        {},
        {"a": 1},
        "bpe",
        "../..",
        "\x00",
    ]
    recipe = copy.deepcopy(recipe)
    for _ in range(dice.randint(1, 3)):
        place: Any = recipe
        key = dice.choice(list(place))
        while isinstance(place[key], dict) and place[key] and dice.random() < 0.8:
            place, key = place[key], dice.choice(list(place[key]))
        change = dice.randrange(4)
        if change == 0:
            place[key + dice.choice("xyz_")] = place.pop(key)
        elif change == 1 and len(place) > 1:
            del place[key]
        else:
            place[key] = dice.choice(values)
    return recipe


def test_ten_thousand_mutated_recipes_are_recipes_or_one_message(tmp_path: Path) -> None:
    dice, file = random.Random(7), tmp_path / "mutated.yaml"  # noqa: S311
    originals = [MINIMAL, yaml.safe_load((CONFIGS / "quickstart.yaml").read_text())]
    messages = []
    for number in range(10_000):
        file.write_text(yaml.dump(mutated(originals[number % 2], dice), Dumper=FAST_DUMPER))
        try:
            training_arguments(load_recipe(file), tmp_path)
        except RecipeError as error:
            messages.append(str(error))
    assert 5_000 < len(messages) < 9_900
    assert max(len(message.splitlines()) for message in messages) <= 5
