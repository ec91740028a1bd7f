"""A recipe that is written for a text loads, is right for `check`, and trains; own_text.yaml explains every key."""

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hf_vanilla.data.spoken import spoken_pairs
from hf_vanilla.training import shipped, yaml12
from hf_vanilla.training.own_text import KEY, filled_in, template
from hf_vanilla.training.recipe import load_recipe
from hf_vanilla_cli import main
from hf_vanilla_cli.beginning import repeated_options

OWN_TEXT = shipped.named("own_text")
LINES = OWN_TEXT.read_text().splitlines()
CHOICES = [number for number, line in enumerate(LINES) if line.startswith("  #") and KEY.fullmatch(line)]
REPLACED = {  # by `from`, beside the key of the same name
    "tokenizer": ("kind", "vocab_size"),
    "model": ("kind", "vocab_size", "d_model", "encoder_layers", "decoder_layers", "num_heads", "d_ff"),
}


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def section_of(number: int) -> str:
    return next(line.partition(":")[0] for line in reversed(LINES[:number]) if re.match(r"\w", line))


@pytest.mark.parametrize("number", CHOICES, ids=lambda number: LINES[number].strip()[:60])
def test_every_choice_of_own_text_may_be_made(number: int, tmp_path: Path) -> None:
    section, key = section_of(number), KEY.fullmatch(LINES[number])[2]
    replaced = [key, *(REPLACED[section] if key == "from" else ())]
    lines = [
        f"  #{line.strip()}" if (found := KEY.fullmatch(line)) and not found[1] and found[2] in replaced else line
        for line in LINES
    ]
    lines[number] = LINES[number].replace("#", "", 1)
    file = tmp_path / "mine.yaml"
    file.write_text("\n".join(lines))
    recipe = load_recipe(file)
    chosen = yaml12.load(file.read_text())[section][key]
    assert recipe.keys.get(f"{section}.{key}", "replaced by its keys") == (
        chosen if key != "preset" else "replaced by its keys"
    )


def test_every_kind_of_corpus_and_both_ways_of_validation_are_shown() -> None:
    choices = "\n".join(LINES)
    for shown in (".tsv", ".csv", ".jsonl", ".parquet", "dataset:", "prefix:", "weight:", "as: words", "share:"):
        assert shown in choices, shown


def test_every_key_of_own_text_is_explained() -> None:
    """By a comment above it, or above the keys that stand together with it."""
    explained = False
    for line in template():
        explained = line.text.startswith("  # ") or (explained and line.key is not None)
        assert line.key is None or explained, line.text


def test_own_text_filled_in_with_its_own_values_is_itself() -> None:
    values = yaml12.load(OWN_TEXT.read_text())
    again = filled_in(values, "# mine")
    assert yaml12.load(again) == values
    assert [line for line in again.splitlines() if "# " in line][1:] == [
        line.text for line in template() if "# " in line.text
    ]


def test_what_has_no_value_becomes_a_comment_and_a_choice_becomes_a_value() -> None:
    text = filled_in({"data": {"test": {"file": "x: y.tsv"}}, "tokenizer": {"kind": "character"}}, "# mine")
    assert yaml12.load(text) == {
        "data": {"test": {"file": "x: y.tsv"}},
        "tokenizer": {"kind": "character"},
        **dict.fromkeys(("model", "training", "generation")),
    }
    assert "  #vocab_size: 10000\n" in text


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spoken forms as two files and as a table."""
    folder = tmp_path_factory.mktemp("texts")
    for name, size in (("train", 400), ("validation", 40)):
        pairs = list(spoken_pairs(name, size))
        for side, suffix in enumerate(("said", "written")):
            (folder / f"{name}.{suffix}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
        (folder / f"{name}.tsv").write_text("".join(f"{said}\t{written}\n" for said, written in pairs))
    return folder


TINY = ("model.d_model=16", "model.d_ff=16", "model.encoder_layers=1", "model.decoder_layers=1")
BRIEF = ("training.max_steps=2", "training.eval_steps=2", "training.save_steps=1", "training.average_checkpoints=2")


def test_two_files_become_a_recipe_that_is_right_and_trains(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [str(texts / f"train.{suffix}") for suffix in ("said", "written")]
    held_out = [str(texts / f"validation.{suffix}") for suffix in ("said", "written")]
    done = command("init", *files, "--validation", *held_out, "--source-language", "en")
    assert done.exit_code == 0, done.output
    text = Path("recipe.yaml").read_text()
    keys: dict[str, Any] = yaml12.load(text)
    assert (tmp_path / keys["data"]["train"]["source"]).resolve() == texts / "train.said"
    assert not Path(keys["data"]["train"]["source"]).is_absolute()
    assert keys["data"]["source_language"] == "en"
    assert keys["tokenizer"]["kind"] == "bpe"
    assert keys["training"]["metric_for_best_model"] == "exact_match"
    time = re.search(r"^# (time: about \d.* on this machine.*)$", text, re.MULTILINE)
    assert time is not None
    assert time[1] in done.stderr
    for following in ("check recipe.yaml", "train recipe.yaml", "translate runs/recipe", "evaluate runs/recipe"):
        assert f"hf-vanilla {following}" in done.stderr
        assert f"hf-vanilla {following}" in text
    checked = command("check", "recipe.yaml")
    assert checked.exit_code == 0, checked.output
    trained = command("train", "recipe.yaml", *TINY, *BRIEF)
    assert trained.exit_code == 0, trained.output
    assert "exact_match: " in trained.stdout
    assert Path("runs/recipe/model.safetensors").exists()


def test_a_table_becomes_a_recipe_that_holds_out_a_part(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("init", str(texts / "train.tsv"), "--test", str(texts / "validation.tsv"), "--output", "a/b.yaml")
    assert done.exit_code == 0, done.output
    recipe = load_recipe(Path("a/b.yaml"))
    numbers = [len(list(corpora[0])) for corpora in (recipe.data.train, recipe.data.validation, recipe.data.test)]
    assert numbers == [320, 80, 40]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give SOURCE and TARGET, a table or a dataset; or --like NAME"),
        (["a.txt", "--like", "quickstart"], 2, "give SOURCE and TARGET, a table or a dataset; or --like NAME"),
        (["a.txt", "b.txt"], 1, "b.txt: ends after line 1, where "),
        (["a.txt", "c.txt"], 1, "c.txt: there is no such file"),
        (["a.txt", "b.txt", "--output", "a.txt"], 1, "a.txt is there already"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("one\ntwo\n")
    Path("b.txt").write_text("eins\n")
    done = command("init", *arguments)
    assert (done.exit_code, message in done.output) == (code, True), done.output
    assert "Traceback" not in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_an_option_takes_all_files_up_to_the_next_option() -> None:
    given = ["a", "b", "--validation", "c", "d", "--test", "e", "f", "--output", "g"]
    assert repeated_options(given) == [
        *("a", "b", "--validation", "c", "--validation", "d", "--test", "e", "--test", "f", "--output", "g")
    ]
