"""Faults planted in data and recipes are found, each with what to do; where there is none, nothing is said."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from hf_vanilla.training import check as checking
from hf_vanilla.training.check import Report, check
from hf_vanilla.training.recipe import load_recipe
from hf_vanilla_cli import main

CONFIGS = Path(__file__).parents[2] / "configs"
RECIPE = """
data:
  train: {source: train.en, target: train.de}
  validation: {source: validation.en, target: validation.de}
  test: {source: test.en, target: test.de}
  source_language: en
  target_language: de
  max_source_length: 160
  max_target_length: 160
tokenizer: {kind: bpe, vocab_size: 400}
model: {d_model: 16, encoder_layers: 1, decoder_layers: 1, num_heads: 2, d_ff: 16}
training: {max_tokens: 2000, max_steps: 1000, learning_rate: 1e-3, warmup_steps: 50, eval_steps: 100, save_steps: 100}
"""
Texts = dict[str, list[str]]


def corpus() -> Texts:
    """Source words and the same words in another spelling, about as long."""
    dice = random.Random(7)  # noqa: S311
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(2, 8))) for _ in range(300)]
    texts: Texts = {}
    for split, size in (("train", 2000), ("validation", 100), ("test", 100)):
        sources = [" ".join(dice.choices(words, k=dice.randint(3, 20))) for _ in range(size)]
        texts[f"{split}.en"] = sources
        texts[f"{split}.de"] = [" ".join(word[::-1] + "e" for word in source.split()) for source in sources]
    return texts


def checked(folder: Path, texts: Texts, *overrides: str) -> Report:
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    (folder / "recipe.yaml").write_text(RECIPE)
    return check(load_recipe(folder / "recipe.yaml", [f"data.folder={folder}", *overrides]), folder / "runs" / "new")


def test_nothing_is_said_where_nothing_is_wrong(tmp_path: Path) -> None:
    report = checked(tmp_path, corpus())
    assert report.findings == []
    assert report.facts["train pairs"] == "2,000"
    assert report.facts["training"].startswith("1,000 steps, ")
    assert {"disk", "time", "memory", "parameters", "vocabulary", "source tokens", "target tokens"} <= set(report.facts)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("validation", ["{share: 0.05}", "100"])
def test_pairs_that_are_held_out_are_not_among_the_training_pairs(tmp_path: Path, validation: str) -> None:
    texts = corpus()
    for side in ("en", "de"):  # copies, which are all on one side
        texts[f"train.{side}"] += texts[f"train.{side}"][:200]
    report = checked(tmp_path, texts, f"data.validation={validation}")
    assert report.findings == []
    pairs = [int(report.facts[f"{split} pairs"].replace(",", "")) for split in ("train", "validation")]
    assert sum(pairs) == 2200
    assert 60 < pairs[1] < 160


def test_the_same_pair_after_another_prefix_is_another_pair(tmp_path: Path) -> None:
    one, two = (f"{{source: train.en, target: train.de, prefix: {prefix}}}" for prefix in ("<one>", "<two>"))
    report = checked(tmp_path, corpus(), f"data.train=[{one}, {two}]", "training.max_steps=2000")
    assert [str(finding) for finding in report.findings] == [
        f"{split}: sources have the prefix '', and in training '<one>' or '<two>': set data.{split}.prefix to what the "
        "model learns"
        for split in ("validation", "test")
    ]


def copied(texts: Texts) -> None:
    texts["train.de"][:50] = texts["train.en"][:50]


def much_too_short(texts: Texts) -> None:
    texts["train.de"][:50] = ["ea"] * 50


def one_line_missing(texts: Texts) -> None:
    texts["train.de"] = texts["train.de"][:1000] + texts["train.de"][1001:] + ["ea be"]


def cyrillic(texts: Texts) -> None:
    texts["train.de"][5:30] = ["это предложение на другом языке"] * 25


def seen_in_training(texts: Texts) -> None:
    for side in ("en", "de"):
        texts[f"test.{side}"][:5] = texts[f"train.{side}"][:5]


def validation_in_train(texts: Texts) -> None:
    for side in ("en", "de"):
        texts[f"validation.{side}"] = texts[f"train.{side}"][:100]


def repeated(texts: Texts) -> None:
    for side in ("en", "de"):
        texts[f"train.{side}"] = texts[f"train.{side}"][:1000] * 2


def empty(texts: Texts) -> None:
    texts["train.de"][10:60] = [""] * 50


def too_long(texts: Texts) -> None:
    for side in ("en", "de"):
        texts[f"train.{side}"][:50] = [" ".join([line] * 40) for line in texts[f"train.{side}"][:50]]


def read_in_the_wrong_encoding(texts: Texts) -> None:
    texts["train.de"][3:20] = [line.replace("e", "Ã¼") for line in texts["train.de"][3:20]]


def lost_characters(texts: Texts) -> None:
    texts["validation.en"][3] += " \ufffd"


def spelt_in_capitals(texts: Texts) -> None:
    for side in ("en", "de"):
        texts[f"test.{side}"] = [line.upper() for line in texts[f"test.{side}"]]


@pytest.mark.parametrize(
    ("plant", "found", "advice"),
    [
        (copied, r"train: 50 of 2,000 pairs have a target that is a copy of the source; first", "take them out"),
        (much_too_short, "pairs have a target that is over 4 times longer or shorter than usual", "belong together"),
        (one_line_missing, "train.en:1001 on, lengths fit those of neighbouring lines better", "shifted"),
        (cyrillic, "train: 25 of 2,000 pairs have a target that is not in Latin script; first", "another language"),
        (seen_in_training, "test: 5 of 100 pairs are in the training pairs too; first", "the scores will say nothing"),
        (validation_in_train, "validation: 100 of 100 pairs are in the training pairs too", "take them out"),
        (repeated, "train: 1,000 of 2,000 pairs occur before in the same split", "take the repetitions out"),
        (empty, "train: 50 of 2,000 pairs are skipped, being empty or too long", "correct them"),
        (too_long, "train: 50 of 2,000 pairs are skipped, being empty or too long", "raise data.max_source_length"),
        (read_in_the_wrong_encoding, "train: 17 of 2,000 pairs have broken characters", "in its own encoding"),
        (lost_characters, "validation: 1 of 100 pairs have broken characters", "in its own encoding"),
        (spelt_in_capitals, "test: its texts fall into", "prepare both in the same way"),
    ],
)
def test_faults_of_the_data_are_found(tmp_path: Path, plant: Callable[[Texts], None], found: str, advice: str) -> None:
    texts = corpus()
    plant(texts)
    findings = [str(finding) for finding in checked(tmp_path, texts).findings]
    assert any(found in finding and advice in finding for finding in findings), findings


@pytest.mark.parametrize(
    ("overrides", "found", "advice"),
    [
        (["training.warmup_steps=600"], "the warm-up takes 600 of the 1,000 steps", "lower"),
        (["training.warmup_steps=0.6"], "the warm-up takes 600 of the 1,000 steps", "lower"),
        (["training.learning_rate=0.1"], "a learning rate of 0.1 at the peak is 2.8 times that of", "norm_first: true"),
        (
            ["training.learning_rate=0.02"],
            "a learning rate of 0.02 at the peak is 5.1 times that of the paper for this model and a warm-up of 4,000",
            "about 4.0e-03, or model.norm_first: true",
        ),
        (
            ["training.learning_rate=0.01", "model.encoder_layers=12"],
            "a learning rate of 0.01 at the peak is 2.5 times that of the paper for this model and a warm-up of 4,000",
            "about 4.0e-03, or model.norm_first: true",
        ),
        (["training.learning_rate=0"], "a learning rate of 0 at the peak is 0.0% of that of", "about 4.0e-03"),
        (["training.learning_rate=5e-5"], "a learning rate of 5e-05 at the peak is 1.3% of that of", "about 4.0e-03"),
        (
            ["training.learning_rate=5e-5", "training.lr_scheduler_type=cosine", "model.norm_first=true"],
            "a learning rate of 5e-05 at the peak is 1.3% of that of",
            "about 4.0e-03",
        ),
        (
            ["training.eval_steps=1001"],
            "there is one validation, at the end: training has 1,000 steps, training.eval_steps is 1,001",
            "lower training.eval_steps",
        ),
        (["training.average_checkpoints=11"], "11 checkpoints are to be averaged, and there will be 10", "raise"),
        (
            ["training.average_checkpoints=6", "training.average=best", "training.eval_steps=200"],
            "6 checkpoints are to be averaged, and there will be 5 with a validation",
            "raise",
        ),
        (["training.max_steps=9", "training.warmup_steps=2"], "9 steps see only a part", "raise training.max_steps"),
        (["training.max_steps=500"], "500 steps see 100,555 target tokens 9.3 times", "540 steps are 10 epochs"),
        (["training.max_steps=-1"], "162 steps see 100,555 target tokens 3.0 times", "raise training.num_train_epochs"),
        (
            ["generation.max_length=10"],
            "of the validation and test targets are longer than generation.max_length",
            "raise",
        ),
        (["generation.max_new_tokens=9"], "longer than generation.max_new_tokens", "raise generation.max_new_tokens"),
        (["tokenizer.kind=word", "tokenizer.vocab_size=100"], "of the training tokens are unknown words", "bpe"),
        (["tokenizer.vocab_size=9000"], "is 9,000, and the training text gives 2,053 tokens: each", "lower tokenizer"),
        (["tokenizer.vocab_size=2000"], "occurs fewer than 5 times in training", "lower"),
        (["tokenizer.vocab_size=8000", "tokenizer.kind=word"], "occurs fewer than 5 times in training", "lower"),
        (["tokenizer.vocab_size=100"], "is 100, and the training text gives 261 tokens: bytes", "raise tokenizer"),
        (["tokenizer.vocab_size=270"], "a usual token has 1.0 characters, and occurs 2,322 times", "raise tokenizer"),
    ],
)
def test_faults_of_the_recipe_are_found(tmp_path: Path, overrides: list[str], found: str, advice: str) -> None:
    texts = corpus()
    if "tokenizer.kind=word" in overrides:
        texts["train.en"] = [f"{line} x{number}y" for number, line in enumerate(texts["train.en"])]
    findings = [str(finding) for finding in checked(tmp_path, texts, *overrides).findings]
    assert any(found in finding and advice in finding for finding in findings), findings


def test_a_search_without_a_length_is_right(tmp_path: Path) -> None:
    overrides = ["generation.max_length=null", "generation.max_length_beyond_source=50"]
    assert checked(tmp_path, corpus(), *overrides).findings == []


def test_too_little_room_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "free_space", lambda _: 1)
    monkeypatch.setattr(checking.os, "sysconf", lambda _: 1000)
    found = " ".join(map(str, checked(tmp_path, corpus()).findings))
    assert "MiB on disk, and 0 MiB are free: make room" in found
    assert "of memory, and this machine has 1: lower training.max_tokens" in found


def test_the_command_prints_facts_and_findings_and_fails_if_there_are_any(tmp_path: Path) -> None:
    checked(tmp_path, corpus())
    command = ["check", str(tmp_path / "recipe.yaml"), f"data.folder={tmp_path}"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0
    assert "parameters: " in done.stdout
    assert done.stdout.endswith("\nNothing to change.\n")
    done = CliRunner().invoke(main, [*command, "training.warmup_steps=600"])
    assert done.exit_code == 1
    assert "\nTo change:\n- the warm-up takes 600 of" in done.stdout
    done = CliRunner().invoke(main, [*command, "training.warmup_steps=600", "--json"])
    assert json.loads(done.stdout)["findings"][0].startswith("the warm-up takes 600 of")


def test_the_quick_start_is_found_right(tmp_path: Path) -> None:
    overrides = ["data.train.size=3000", "training.max_steps=600", "training.eval_steps=100"]
    assert check(load_recipe(CONFIGS / "quickstart.yaml", overrides), tmp_path).findings == []
