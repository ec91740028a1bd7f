"""A recipe is checked whole before anything is trained: each mistake is one message that names key and value."""

import copy
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.data.corpus import HubDataset, ParallelText, Symbols, Table
from hf_vanilla.data.held_out import split
from hf_vanilla.training.data_section import EXAMPLES
from hf_vanilla.training.places import located
from hf_vanilla.training.preparation import prepare
from hf_vanilla.training.recipe import RecipeError, load_recipe, refuse_another_recipe
from hf_vanilla.training.run import training_arguments
from hf_vanilla.training.shipped import preset

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


def test_several_corpora_and_several_columns(minimal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(minimal.parent)
    corpora = "[{file: a.tsv, source: [lemma, tags], target: form}, {source: a, target: b}]"
    recipe = load_recipe(minimal, [f"data.train={corpora}"])
    assert recipe.data.train == (
        Table(minimal.parent / "a.tsv", ("lemma", "tags"), "form"),
        ParallelText(minimal.parent / "a", minimal.parent / "b"),
    )


def test_columns_of_symbols(minimal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(minimal.parent)
    features = "{column: 1, as: words, separator: ';'}"
    recipe = load_recipe(
        minimal,
        [
            f"data.train={{file: a.tsv, source: [lemma, {features}], target: form}}",
            f"data.validation={{dataset: inflection, source: [0, {features}], target: 2}}",
        ],
    )
    assert recipe.data.train == (
        Table(minimal.parent / "a.tsv", ("lemma", 1), "form", symbols=(None, Symbols(";"), None)),
    )
    (validation,) = recipe.data.validation
    assert (validation.source_symbols, validation.target_symbols) == ((None, Symbols(";")), None)
    phonemes = "{source: words, target: {file: phonemes, as: words}}"
    (train,) = load_recipe(minimal, [f"data.train={phonemes}", f"data.validation={phonemes}"]).data.train
    assert train == ParallelText(minimal.parent / "words", minimal.parent / "phonemes", symbols=(None, Symbols(" ")))
    (text,) = load_recipe(minimal).data.train
    assert (text.source_symbols, text.target_symbols) == ((None,), None)


def test_corpora_have_prefixes_and_weights(minimal: Path) -> None:
    corpora = (
        "[{source: a, target: b, prefix: <2de>, weight: 3}, {source: b, target: a, prefix: 'to en: ', weight: .5}]"
    )
    train = load_recipe(minimal, [f"data.train={corpora}", "data.validation.prefix=<2de>"]).data.train
    assert [(corpus.prefix, corpus.weight) for corpus in train] == [("<2de>", 3.0), ("to en: ", 0.5)]


@pytest.mark.parametrize(("validation", "amount"), [("{share: 0.02}", 0.02), ("{share: 1.e-3}", 0.001), ("500", 500)])
def test_validation_pairs_may_be_a_part_of_the_training_pairs(minimal: Path, validation: str, amount: float) -> None:
    corpora = "[{source: a, target: b, prefix: <2de>}, {source: b, target: a}]"
    data = load_recipe(minimal, [f"data.train={corpora}", f"data.validation={validation}"]).data
    assert (data.train, data.validation) == split(load_recipe(minimal, [f"data.train={corpora}"]).data.train, amount)


def test_names_of_files_start_at_the_recipe_wherever_one_is(
    minimal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "set").mkdir()
    for overrides, folder in (
        ([], tmp_path),
        (["data.folder=~/x"], Path.home() / "x"),
        (["data.folder=/y"], Path("/y")),
    ):
        monkeypatch.chdir(tmp_path)
        recipe = load_recipe(Path("minimal.yaml"), overrides)
        monkeypatch.chdir("/")
        assert load_recipe(minimal, overrides).data == recipe.data
        assert recipe.folder == tmp_path
        assert recipe.data.train == (ParallelText(folder / "a.en", folder / "a.de"),)
    minimal.write_text(minimal.read_text().replace("data:\n", "data:\n  folder: texts\n"))
    dataset = "data.test={dataset: set, source: en, target: de}"
    monkeypatch.chdir(tmp_path / "texts")
    recipe = load_recipe(minimal, [dataset])
    monkeypatch.chdir("/")
    assert recipe.data.validation[0].files == (tmp_path / "texts" / "b.tsv",)
    assert recipe.data.test == (HubDataset(str(tmp_path / "texts" / "set"), ("en",), "de"),)


def test_paths_on_the_command_line_start_at_the_current_directory_and_stay_as_they_were_typed(
    minimal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work" / "one").mkdir(parents=True)
    minimal.write_text(yaml.safe_dump(MINIMAL | {"tokenizer": {}, "model": {}}))
    monkeypatch.chdir(tmp_path / "work")
    recipe = load_recipe(minimal, ["data.folder=../texts", "model.from=one"])
    assert recipe.data.train[0].files == (tmp_path / "texts" / "a.en", tmp_path / "texts" / "a.de")
    assert recipe.model_from == str(tmp_path / "work" / "one")
    assert (recipe.keys["data.folder"], recipe.keys["model.from"]) == ("../texts", "one")
    assert load_recipe(minimal, ["tokenizer.from=one"]).tokenizer.from_ == str(tmp_path / "work" / "one")
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text(recipe.text)
    (run / "prepared.json").write_text(json.dumps({"places": recipe.places.as_json()}))
    monkeypatch.chdir("/")
    assert load_recipe(run / "recipe.yaml") == recipe
    moved = load_recipe(run / "recipe.yaml", ["data.folder=texts"])
    assert moved.data.train[0].files == (Path("/texts/a.en"), Path("/texts/a.de"))
    assert moved.model_from == recipe.model_from


def test_paths_inside_of_what_is_typed_start_at_the_current_directory(
    minimal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, work = (
        {"data": MINIMAL["data"] | {"folder": "texts", "test": {"file": "c.tsv", "source": 0, "target": 1}}},
        tmp_path / "work",
    )
    minimal.write_text(yaml.safe_dump(MINIMAL | recipe))
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "set").mkdir()
    typed = [
        "data.train=[{file: x.tsv, source: 0, target: 1}, {dataset: set, source: 0, target: 1}]",
        "data.validation.file=y.tsv",
    ]
    loaded = load_recipe(minimal, typed)
    found = [loaded.data.train[0].files[0], loaded.data.train[1].dataset, loaded.data.validation[0].files[0]]
    assert found == [work / "x.tsv", str(work / "set"), work / "y.tsv"]
    assert loaded.data.test[0].files == (tmp_path / "texts" / "c.tsv",)  # the recipe's own
    mixed = load_recipe(minimal, ["data.train.source=x", "data.train.prefix=c"]).data.train[0]
    assert mixed.files == (work / "x", tmp_path / "texts" / "a.de")
    assert load_recipe(minimal, [*typed, "data.folder=in"]).data.train[0].files == (work / "in" / "x.tsv",)

    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text(loaded.text)
    (run / "prepared.json").write_text(json.dumps({"places": loaded.places.as_json()}))
    monkeypatch.chdir("/")
    assert load_recipe(run / "recipe.yaml").data == loaded.data
    again = load_recipe(run / "recipe.yaml", ["data.validation={file: z.tsv, source: 0, target: 1}"]).data
    assert (again.train, again.validation[0].files) == (loaded.data.train, (Path("/z.tsv"),))
    moved = load_recipe(run / "recipe.yaml", ["data.folder=moved"]).data
    assert (moved.train[0].files, moved.test[0].files) == ((Path("/moved/x.tsv"),), (Path("/moved/c.tsv"),))


def test_names_in_a_run_start_where_they_did_when_it_began(
    minimal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text(minimal.read_text())
    (run / "prepared.json").write_text(json.dumps({"places": {"": str(tmp_path / "begun")}}))
    assert load_recipe(run / "recipe.yaml").data.train[0].files[0] == tmp_path / "begun" / "a.en"
    (run / "prepared.json").write_text("{}")  # of a version that started at the current directory
    monkeypatch.chdir(tmp_path)
    assert load_recipe(run / "recipe.yaml").data.train[0].files[0] == tmp_path / "a.en"
    (run / "prepared.json").unlink()  # somebody's own recipe
    assert load_recipe(run / "recipe.yaml").data.train[0].files[0] == run / "a.en"


def test_a_run_of_the_tokenizer_that_is_no_more_can_be_used(minimal: Path, tmp_path: Path) -> None:
    minimal.write_text(minimal.read_text().replace("kind: bpe", "kind: hybrid"))
    with pytest.raises(
        RecipeError, match=r"'hybrid' is no more: say which columns hold symbols, as in target: {column"
    ):
        load_recipe(minimal)
    (tmp_path / "recipe.yaml").write_text(minimal.read_text())
    (tmp_path / "prepared.json").write_text("{}")
    recipe = load_recipe(tmp_path / "recipe.yaml")
    with pytest.raises(RecipeError, match="'hybrid' is no more"):
        prepare(recipe, tmp_path / "new")


def test_a_preset_gives_the_fields_that_are_not_beside_it(minimal: Path) -> None:
    tiny = {key: value for key, value in preset("tiny").items() if key != "vocab_size"}
    with pytest.raises(RecipeError, match=r"model\.preset: cannot stand beside model\.from"):
        load_recipe(minimal, ["model.preset=tiny", "model.from=our/model"])
    recipe = load_recipe(minimal, ["model.dropout=0.2", "model.preset=tiny"])
    assert recipe.model == tiny | {"dropout": 0.2}  # and none of the file's, in the place of which the preset comes
    assert "preset" not in recipe.text  # what a preset is may change in later versions
    minimal.write_text(minimal.read_text().replace("d_model: 32\n  num_heads: 4", "preset: tiny\n  d_model: 64"))
    assert load_recipe(minimal).model == tiny | {"d_model": 64}
    assert load_recipe(minimal, ["model.preset=null"]).model == {"d_model": 64}


@pytest.mark.parametrize("section", ["model", "tokenizer"])
def test_what_a_training_starts_from_is_a_directory_or_on_the_hub(minimal: Path, tmp_path: Path, section: str) -> None:
    def start(place: str) -> str | None:
        minimal.write_text(yaml.safe_dump(MINIMAL | {"tokenizer": {}, "model": {}} | {section: {"from": place}}))
        recipe = load_recipe(minimal)
        return recipe.model_from if section == "model" else recipe.tokenizer.from_

    (tmp_path / "runs" / "one").mkdir(parents=True)
    assert start("runs/one") == str(tmp_path / "runs" / "one")
    assert start("runs/two") == "runs/two"
    assert start("our-model_1.0") == "our-model_1.0"
    for path in ("runs/one/checkpoint-5", "./two", "../two", "/two"):  # what no model on the Hub can be called
        assert start(path) == str((tmp_path / path).resolve())
    assert start(None) is None


def test_the_size_of_a_model_that_is_given_may_be_said_in_part(minimal: Path) -> None:
    minimal.write_text(yaml.safe_dump(MINIMAL | {"tokenizer": {}, "model": {"from": "our/model", "d_model": 100}}))
    assert load_recipe(minimal).model == {"d_model": 100}  # though not 8 heads, as there are usually, fit to it


@pytest.mark.parametrize(
    ("override", "begins", "kinds"),
    [
        ("data.train=a.en", "data.train: must be a mapping of keys to values, not 'a.en'", "{source: train.en, target"),
        (
            "data.train.sorce=a",
            "data.train: there is no key 'sorce'; did you mean 'source'?",
            "{file: pairs.tsv, source",
        ),
        ("data.train=[{}, {}]", "data.train[0].source: is missing", "{dataset: wmt/wmt14, name: de-en, source: en, "),
        ("data.train=null", "data.train: is missing", "{generated: spoken_forms, split: train, size: 1000}"),
        (
            "data.validation=0.02",
            "data.validation: must be a mapping of keys to values, not 0.02",
            "\n  {share: 0.02} ",
        ),
        ("data.test=[]", "data.test: is empty", "(or a list of several corpora)"),
    ],
)
def test_a_corpus_that_is_not_written_as_one_is_shown_how_all_kinds_are_written(
    minimal: Path, override: str, begins: str, kinds: str
) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(minimal, [override])
    assert str(error.value).startswith(begins + "\n")
    assert kinds in str(error.value)
    for example, _ in EXAMPLES.values():
        load_recipe(minimal, [f"data.test={example}"])


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
        ("data.train.symbols=[]", "data.train: there is no key 'symbols'"),
        ("data.train.prefix=3", "data.train.prefix: 3 is int, expected str"),
        ('data.train.prefix="a\\n"', r"data.train.prefix: 'a\n' must be text without a line break"),
        ('data.train.source="a\\0"', r"data.train.source: 'a\x00' cannot be the name of a file or folder"),
        ("data.train.source=[a]", "data.train.source: ['a'] is list, expected str"),
        ("data.validation.source=[]", "data.validation.source: has no column"),
        ("data.validation.source=[[1]]", "data.validation.source: [1] is list, expected str or int"),
        ("data.train.weight=0", "data.train: weight (0.0) must be more than 0"),
        ("data.train.weight=.nan", "data.train: weight (nan) must be more than 0, and finite"),
        ("data.validation.weight=1", "data.validation: weight (1.0) has an effect in data.train only"),
        (
            "data.train=[{source: a, target: b}, {source: c, target: d, weight: 1}]",
            "data.train[0]: has no weight, and data.train[1] has one: give all or none",
        ),
        (
            "data.validation.target={column: 1, as: words, separator: ;}",
            "data.validation: has sources of text, and targets of symbols between ';', and the first corpus of "
            "data.train has sources of text, and targets of text: they must be the same",
        ),
        (
            "data.train.target={file: b, as: letters}",
            "data.train.target.as: 'letters' must be 'words'; ordinary text is",
        ),
        ("data.train.target={fiel: b, as: words}", "data.train.target: there is no key 'fiel'; did you mean 'file'?"),
        ("data.train.target={file: b}", "data.train.target: {'file': 'b'} is not as in {file: X, as: words"),
        (
            "data.train.target={file: {}, as: words}",
            "data.train.target: {'file': {}, 'as': 'words'} is not as in {file",
        ),
        (
            "data.train.target={file: b, as: words, separator: ''}",
            "data.train.target.separator: '' must be text without",
        ),
        ("data.validation=0", "data.validation: 0 must be at least 1"),
        ("data.validation={share: 1}", "data.validation.share: 1.0 must be more than 0 and less than 1"),
        ("data.validation={share: .nan}", "data.validation.share: nan must be more than 0 and less than 1"),
        ("data.validation={share: 0.1, seed: 3}", "data.validation: 'seed' cannot stand beside share"),
        ("model.preset=tyny", "model.preset: there is no preset 'tyny'; did you mean 'tiny'?"),
        ("model.from=our/model", "tokenizer.kind: cannot stand beside model.from, which has its tokenizer"),
        ("tokenizer.from=our/tokenizer", "tokenizer.kind: cannot stand beside tokenizer.from, which has its tokenizer"),
        ("tokenizer.from_=a", "tokenizer: there is no key 'from_'; did you mean 'from'?"),
        ("model.from=3", "model.from: 3 is int, expected str or null"),
        ("data.train=a.en", "data.train: must be a mapping of keys to values, not 'a.en'"),
        ("model.d_model=30", "model: ValueError: d_model (30) must be divisible by num_heads (4)"),
        ("model.dropout=much", "model.dropout: 'much' is str, expected float or int"),
        (
            "tokenizer.kind=words",
            "tokenizer.kind: 'words' is str, expected one of 'bpe', 'character', 'word'",
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
        ("training.r_drop=-1", "training.r_drop: -1.0 must be at least 0, and finite; try 1"),
        ("training.r_drop=.inf", "training.r_drop: inf must be at least 0, and finite; try 1"),
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


def test_r_drop_without_dropout_is_refused(minimal: Path) -> None:
    with pytest.raises(RecipeError, match=r"training\.r_drop: 5 has no effect without dropout: set model\.dropout"):
        load_recipe(minimal, ["training.r_drop=5", "model.dropout=0"])
    assert load_recipe(minimal, ["training.r_drop=5", "model.dropout=0", "model.attention_dropout=0.1"])


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


def test_a_number_of_epochs_may_be_typed_beside_the_steps_that_it_replaces(minimal: Path) -> None:
    typed = ["training.num_train_epochs=20", "training.max_steps=-1"]
    for overrides in (typed, typed[::-1]):
        arguments = load_recipe(minimal, overrides).arguments
        assert (arguments["num_train_epochs"], arguments["max_steps"]) == (20, -1)
    minimal.write_text(minimal.read_text().replace("max_steps: 10", "num_train_epochs: 10"))
    assert load_recipe(minimal, ["training.max_steps=-1"]).arguments["num_train_epochs"] == 10


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


@pytest.mark.parametrize(
    ("before", "override", "may_go_on"),
    [
        ([], "training.average=best", True),
        ([], "training.average_tokens_across_devices=false", False),
        ([], "training.eval_steps=5", True),
        (["training.lr_scheduler_type=reduce_lr_on_plateau"], "training.eval_steps=5", False),
        ([], "generation.num_beams=3", True),
        ([], "training.learning_rate=1e-4", False),
    ],
)
def test_what_steps_do_not_depend_on_may_change(
    minimal: Path, tmp_path: Path, before: list[str], override: str, may_go_on: bool
) -> None:
    begun = tmp_path / "begun.yaml"
    before = [*before, "training.eval_steps=2", "training.save_steps=1", "training.average_checkpoints=2"]
    begun.write_text(load_recipe(minimal, before).text)
    now = load_recipe(minimal, [*before, override])
    if may_go_on:
        refuse_another_recipe(now, begun)
    else:
        with pytest.raises(RecipeError, match="was begun with another recipe"):
            refuse_another_recipe(now, begun)


def test_a_run_may_get_a_licence_later(minimal: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun.yaml"
    begun.write_text(load_recipe(minimal).text)
    licensed = load_recipe(minimal, ["data.license=cc-by-4.0"])
    assert licensed.data.license == "cc-by-4.0"
    refuse_another_recipe(licensed, begun)


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
    assert max(len(message.splitlines()) for message in messages) <= 8  # kinds of corpora, a line each


def test_a_path_is_the_one_that_the_system_would_open(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    (tmp_path / "a" / "blob").write_text("x\ty\n")
    (tmp_path / "a" / "pairs.tsv").symlink_to("blob")
    assert located("../pairs.tsv", tmp_path / "link", "data.train") == tmp_path / "a" / "pairs.tsv"
    assert located("..", tmp_path / "link", "data.folder") == tmp_path / "a"
    assert located("link/pairs.tsv", tmp_path, "data.train") == tmp_path / "link" / "pairs.tsv"
    with pytest.raises(RecipeError, match=r"data\.folder: '~nobody-of-this-name': Could not determine home"):
        located("~nobody-of-this-name", tmp_path, "data.folder")
