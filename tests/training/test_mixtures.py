"""Trainings on several corpora, with their prefixes and weights, and on columns of symbols: the same after any stop."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from transformers import AutoTokenizer

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.data.tokenizer import Columns, Encoder
from hf_vanilla.inference.translator import Translator, translate_each
from hf_vanilla.training.check import check
from hf_vanilla.training.preparation import SPLITS, encoded_file
from hf_vanilla.training.recipe import Recipe, load_recipe
from hf_vanilla.training.run import train

RECIPE = """
data:
  train:
  - {file: forms.tsv, source: [0, {column: 2, as: words, separator: ";"}], target: 1, prefix: <form>, weight: 3}
  - {file: lemmas.tsv, source: [0, {column: 2, as: words, separator: ";"}], target: 1, prefix: "lemma of ", weight: 1}
  validation:
  - {file: forms.tsv, source: [0, {column: 2, as: words, separator: ";"}], target: 1, prefix: <form>}
  - {file: lemmas.tsv, source: [0, {column: 2, as: words, separator: ";"}], target: 1, prefix: "lemma of "}
tokenizer: {kind: character}
model: {d_model: 16, encoder_layers: 1, decoder_layers: 1, num_heads: 2, d_ff: 16}
training:
  max_steps: 9
  max_tokens: 500
  learning_rate: 1e-3
  warmup_steps: 2
  logging_steps: 4
  eval_steps: 9
  save_steps: 1
  use_cpu: true
"""
TEXT = """
data:
  train: {file: forms.tsv, source: 0, target: 1}
  validation: {file: lemmas.tsv, source: 0, target: 1}
"""
FORMS, LEMMAS = 40, 20
Step = tuple[Any, ...]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return recipe_in(tmp_path, RECIPE)


def recipe_in(folder: Path, text: str) -> Recipe:
    (folder / "forms.tsv").write_text("".join(f"run{n}\trun{n}s\tV;3;SG\n" for n in range(FORMS)))
    (folder / "lemmas.tsv").write_text("".join(f"see{n}s\tsee{n}\tV;INF\n" for n in range(LEMMAS)))
    (folder / "recipe.yaml").write_text(text)
    return load_recipe(folder / "recipe.yaml")


def test_a_training_with_weights_prefixes_and_symbols_goes_on_as_if_it_had_not_stopped(
    recipe: Recipe, steps_taken: list[Step], tmp_path: Path
) -> None:
    validated = []

    def translate(_: Any, __: Any, sources: Sequence[Sequence[str]], prefixes: Sequence[str]) -> list[str]:
        validated.extend(zip(sources, prefixes, strict=True))
        return ["" for _ in sources]

    train(recipe, tmp_path / "run", translate, lambda *_: {})
    unbroken = steps_taken.copy()
    assert {prefix for (lemma, *_), prefix in validated if lemma.startswith("run")} == {"<form>"}
    assert {prefix for (lemma, *_), prefix in validated if lemma.startswith("see")} == {"lemma of "}

    encoder = Encoder(AutoTokenizer.from_pretrained(tmp_path / "run"))
    assert encoder.columns == Columns((None, ";"), None)
    tag, (first_letter, *_) = encoder.tag("<form>"), encoder.sources([["l", "V"]])[0]
    begins = [row[0] for _, sources, *_ in unbroken for row in sources]
    assert set(begins) == {tag, first_letter}
    an_epoch = LEMMAS * 4
    assert begins[:an_epoch].count(tag) == LEMMAS * 3
    assert begins[an_epoch : 2 * an_epoch].count(tag) == LEMMAS * 3

    steps_taken.clear()
    for step in (5, 6, 7, 8, 9):
        shutil.rmtree(tmp_path / "run" / f"checkpoint-{step}")
    train(recipe, tmp_path / "run", translate, lambda *_: {})
    assert steps_taken == unbroken[4:]


def test_a_run_that_an_earlier_version_prepared_goes_on(steps_taken: list[Step], tmp_path: Path) -> None:
    recipe, run = recipe_in(tmp_path, TEXT + RECIPE[RECIPE.index("tokenizer:") :]), tmp_path / "run"
    train(recipe, run, nothing, lambda *_: {})
    unbroken = steps_taken.copy()
    steps_taken.clear()
    for step in (5, 6, 7, 8, 9):
        shutil.rmtree(run / f"checkpoint-{step}")
    for split in SPLITS:
        without_newer_columns(encoded_file(run, split))
    settings = run / "tokenizer_config.json"
    before = json.loads(settings.read_text())
    assert before.pop("columns") == {"source": [None], "target": None}
    settings.write_text(json.dumps(before))
    train(recipe, run, nothing, lambda *_: {})
    assert steps_taken == unbroken[4:]


def nothing(_: Any, __: Any, sources: Sequence[Any], prefixes: Sequence[str]) -> list[str]:
    return ["" for _ in zip(sources, prefixes, strict=True)]


def without_newer_columns(file: Path) -> None:
    table = datasets.Dataset.from_file(str(file)).data.table.drop_columns(["prefix", "corpus"])
    aside = file.with_name("earlier")  # as the table is mapped from the file
    with pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    aside.replace(file)


def test_the_check_says_what_each_corpus_contributes(recipe: Recipe, tmp_path: Path) -> None:
    report = check(recipe, tmp_path / "run")
    assert report.facts["mixture"] == (
        "75.0% of an epoch from data.train[0] (60 pairs, each 1.5 times, after '<form>'); "
        "25.0% of an epoch from data.train[1] (20 pairs, after 'lemma of ')"
    )
    assert (
        "mixture" not in check(recipe_in(tmp_path, TEXT + RECIPE[RECIPE.index("tokenizer:") :]), tmp_path / "run").facts
    )


def test_sources_of_different_prefixes_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def translate(self: Translator, sources: Sequence[Sequence[str]], *, prefix: str) -> list[str]:
        calls.append(prefix)
        return [prefix + text for (text,) in sources]

    monkeypatch.setattr(Translator, "translate", translate)
    translator = Translator.__new__(Translator)
    assert translate_each(translator, [["a"], ["b"], ["c"]], ["<2>", "", "<2>"]) == ["<2>a", "b", "<2>c"]
    assert calls == ["<2>", ""]


def test_a_run_with_a_hybrid_tokenizer_still_translates(tmp_path: Path) -> None:
    for file in (Path(__file__).parents[1] / "data" / "hybrid").iterdir():
        shutil.copy(file, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 8, "encoder_layers": 1, "decoder_layers": 1}
    model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=len(tokenizer), **sizes))
    model.save_pretrained(tmp_path)
    phoneme = tokenizer.convert_tokens_to_ids(" EY")
    others = [number for number in range(len(tokenizer)) if number != phoneme]
    options = {"max_length": 4, "num_beams": 1, "suppress_tokens": others}
    assert Translator.from_pretrained(tmp_path).translate([("BATE",), ("TÜ",)], **options) == ["EY EY EY", "EY EY EY"]


def test_a_tag_of_test_pairs_that_was_not_trained_is_refused_before_the_training(tmp_path: Path) -> None:
    test = '  test: {file: lemmas.tsv, source: [0, {column: 2, as: words, separator: ";"}], target: 1, prefix: <2fr>}\n'
    with pytest.raises(InvalidDataError, match="prefix '<2fr>': the model has no such tag"):
        train(recipe_in(tmp_path, RECIPE.replace("tokenizer:", f"{test}tokenizer:")), tmp_path / "run", *[None] * 2)
