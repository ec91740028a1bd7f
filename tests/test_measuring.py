"""A run is measured on what its recipe or the user says; a stand-in for the model says what was asked of it."""

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from hf_vanilla import measuring
from hf_vanilla.data.corpus import GeneratedPairs, HubDataset, ParallelText, Table
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.evaluation.examples import Files
from hf_vanilla.evaluation.metrics import METRICS
from hf_vanilla.training.recipe import RecipeError, load_recipe
from hf_vanilla.training.saving import only_writer
from hf_vanilla.workflow import measure, measure_files
from hf_vanilla_cli import main

TEXTS = {
    "a.en": "one\ntwo\none\n",
    "a.de": "eins\nzwei\nuno\n",
    "b.en": "three\n",
    "b.de": "drei\n",
}
TABLE = "walk\tPAST\twalked\ngo\tPAST\twent\n"


class StandIn:
    """Translates by a dictionary of each run, and remembers the calls."""

    calls: ClassVar[list[tuple[str, list[tuple[str, ...]], dict[str, Any]]]] = []
    knows: ClassVar[dict[str, str]] = {"one": "eins", "two": "zwei", "three": "tres", "walk PAST": "walked"}

    def __init__(self, run: Path):
        self.run = run.name

    @classmethod
    def from_pretrained(cls, run: Path) -> "StandIn":
        return cls(run)

    def translate(self, sources: Sequence[tuple[str, ...]], prefix: str = "", **generation: Any) -> list[str]:
        self.calls.append((self.run, list(sources), generation | ({"prefix": prefix} if prefix else {})))
        return [self.knows.get(" ".join(source), "") if self.run == "run" else "drei" for source in sources]


@pytest.fixture
def make_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`make_run(name, test=..., **training)`: a run whose data are the files of TEXTS."""
    monkeypatch.setattr(measuring, "Translator", StandIn)
    monkeypatch.setattr(StandIn, "calls", [])
    for name, text in TEXTS.items() | {("table.tsv", TABLE)}:
        (tmp_path / name).write_text(text)

    def make(name: str = "run", test: Any = ("a", "b"), **training: Any) -> Path:
        pairs = {letter: {"source": f"{letter}.en", "target": f"{letter}.de"} for letter in "ab"}
        sections = {
            "data": {
                "folder": str(tmp_path),
                "train": pairs["a"],
                "validation": pairs["b"],
                "test": [pairs[each] for each in test] if isinstance(test, tuple) else test,
            },
            "training": {"metrics": ["exact_match"], **training},
        }
        if not test:
            del sections["data"]["test"]
        run = tmp_path / name
        run.mkdir()
        (run / "recipe.yaml").write_text(yaml.safe_dump(sections))
        save_file({"a": torch.zeros(3, 4)}, run / "model.safetensors")
        return run

    return make


def exact(outcomes: Sequence[Any]) -> dict[str, float]:
    return {outcome.examples.name: outcome.scores["exact_match"] for outcome in outcomes}


def evaluate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["evaluate", *map(str, arguments)])


# On the recipe's own splits


def test_each_corpus_of_a_split_and_all_together_are_measured(make_run: Callable[..., Path]) -> None:
    run = make_run()
    assert exact(measure(run)) == {"test": 50, "test: a.en": pytest.approx(100 * 2 / 3), "test: b.en": 0}
    assert exact(measure(run, "validation")) == {"validation": 0}


def test_sources_that_occur_several_times_are_translated_once(make_run: Callable[..., Path]) -> None:
    measure(make_run())
    assert StandIn.calls == [("run", [("one",), ("two",), ("three",)], {})]


def test_grouped_sources_count_once_and_are_right_if_any_target_is(make_run: Callable[..., Path]) -> None:
    grouped = measure(make_run(group_references=True))
    assert exact(grouped) == {"test": pytest.approx(100 * 2 / 3), "test: a.en": 100, "test: b.en": 0}
    assert [len(outcome.hypotheses) for outcome in grouped] == [3, 2, 1]


@pytest.mark.parametrize(
    ("knows", "grouped", "plain"),
    [("eins", 100, 200 / 3), ("uno", 100, 200 / 3), ("un", 50, 100 / 3)],
)
def test_any_target_of_a_grouped_source_is_right(
    make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, knows: str, grouped: float, plain: float
) -> None:
    monkeypatch.setattr(StandIn, "knows", {"one": knows, "two": "zwei"})
    run = make_run(test=("a",))
    assert exact(measure(run)) == {"test": pytest.approx(plain)}
    assert exact(measure(run, overrides=["training.group_references=true"])) == {"test": pytest.approx(grouped)}


def test_report_and_card_have_what_was_measured(make_run: Callable[..., Path]) -> None:
    run = make_run()
    measure(run)
    report = json.loads((run / "report.json").read_text())
    assert {name: entry["scores"]["exact_match"] for name, entry in report.items()} == exact(measure(run))
    assert report["test"]["confidence"]["exact_match"].keys() == {"mean", "ci"}
    assert [len(entry["samples"]) for entry in report.values()] == [3, 0, 0]
    card = (run / "README.md").read_text()
    assert re.search(r"\| test \| exact_match \| 50\.00 ± \d", card)
    assert "| test: b.en | exact_match | 0.00" in card


@pytest.mark.parametrize(
    "options",
    [
        {"overrides": ["generation.num_beams=1"]},
        {"overrides": ["training.metrics=[chrf]"]},
        {"overrides": ["data.test={source: b.en, target: b.de}"]},
        {"lowercase": True},
    ],
)
def test_what_the_recipe_does_not_say_is_not_written_into_the_run(
    make_run: Callable[..., Path], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    monkeypatch.chdir(run.parent)
    before = sorted(run.iterdir())
    measure(run, **options)
    assert sorted(run.iterdir()) == before


def test_a_run_that_is_being_written_is_measured_all_the_same(make_run: Callable[..., Path]) -> None:
    run = make_run()
    with only_writer(run):
        done = evaluate(run, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["test"]["scores"]["exact_match"] == 50
    assert "report.json and the model card do not have these scores" in done.stderr
    assert not (run / "report.json").exists()


def test_scores_belong_to_the_weights_that_were_loaded(
    make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()

    def from_pretrained(place: Path) -> StandIn:
        save_file({"a": torch.ones(3, 4)}, place / "model.safetensors")  # as if an average was made meanwhile
        return StandIn(place)

    monkeypatch.setattr(StandIn, "from_pretrained", from_pretrained)
    measure(run)
    assert "The weights have not been measured" in (run / "README.md").read_text()


def test_overrides_of_the_generation_reach_the_search(make_run: Callable[..., Path]) -> None:
    run = make_run(test=("b",))
    (found,) = measure(run, overrides=["generation.num_beams=1", "generation.length_penalty=0.5"])
    assert found.system == f"{run} num_beams=1 length_penalty=0.5"
    assert StandIn.calls == [("run", [("three",)], {"num_beams": 1, "length_penalty": 0.5})]


@pytest.mark.parametrize("override", ["training.max_steps=3", "model.d_model=8", "tokenizer.kind=word"])
def test_overrides_without_effect_are_refused(make_run: Callable[..., Path], override: str) -> None:
    with pytest.raises(RecipeError, match="an evaluation does not depend on this key; it can change"):
        measure(make_run(), overrides=[override])


def test_a_split_that_is_missing_is_said(make_run: Callable[..., Path]) -> None:
    run = make_run(test=())
    with pytest.raises(InvalidDataError, match=r"run/recipe.yaml: has no data.test; measure another split"):
        measure(run)


def test_corpora_without_pairs_are_left_out_or_refused(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = make_run()
    for name in ("b.en", "b.de"):
        (tmp_path / name).write_text("")
    assert exact(measure(run)).keys() == {"test", "test: a.en"}
    with pytest.raises(InvalidDataError, match=r"recipe.yaml: data.validation has no pairs to measure with"):
        measure(run, "validation")


def test_a_run_is_measured_from_any_directory(
    make_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert exact(measure(Path(os.path.relpath(run))))["test"] == 50


def test_prefixes_reach_the_translator(make_run: Callable[..., Path]) -> None:
    test = [{"source": "a.en", "target": "a.de", "prefix": prefix} for prefix in ("<1>", "<2>")]
    measure(make_run(test=test, group_references=True))
    assert [(call[1], call[2]["prefix"]) for call in StandIn.calls] == [
        ([("one",), ("two",)], "<1>"),
        ([("one",), ("two",)], "<2>"),  # with another prefix they are other sources
    ]


# On files


def files(folder: Path, *letters: str) -> list[Files]:
    return [Files(letter, (folder / f"{letter}.de",), folder / f"{letter}.en") for letter in letters]


def test_files_are_measured_with_the_metrics_of_the_recipe(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = make_run()
    found = measure_files(run, files(tmp_path, "a", "b"), ["generation.num_beams=2"])
    assert exact(found) == {"a": pytest.approx(100 * 2 / 3), "b": 0}
    assert StandIn.calls[0][2] == {"num_beams": 2}
    assert not (run / "report.json").exists()


def test_sources_of_files_have_as_many_parts_as_in_training(make_run: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "source").write_text("walk\tPAST\ngo\tPAST\n")
    (tmp_path / "target").write_text("walked\nwent\n")
    given = [Files("x", (tmp_path / "target",), tmp_path / "source")]
    measure_files(make_run(), given)
    train = f"data.train={{file: {tmp_path / 'table.tsv'}, source: [0, 1], target: 2}}"
    assert exact(measure_files(make_run("other"), given, [train])) == {"x": 0}
    assert [call[1][0] for call in StandIn.calls] == [("walk\tPAST",), ("walk", "PAST")]


def test_columns_that_are_missing_are_said_in_a_line(make_run: Callable[..., Path], tmp_path: Path) -> None:
    for name in ("source", "target"):
        (tmp_path / name).write_text("walk\n")
    train = f"data.train={{file: {tmp_path / 'table.tsv'}, source: [0, 1], target: 2}}"
    done = evaluate(make_run(), train, "--source", tmp_path / "source", "--reference", tmp_path / "target")
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith(f"Warning: {tmp_path / 'source'}:1: has 1 columns")
    assert StandIn.calls[0][1] == [("walk", "")]


def test_the_prefix_is_that_of_all_files(make_run: Callable[..., Path], tmp_path: Path) -> None:
    measure_files(make_run(), files(tmp_path, "a", "b"), prefix="<2de>")
    assert StandIn.calls == [("run", [("one",), ("two",), ("three",)], {"prefix": "<2de>"})]


# Against another system


def test_another_run_translates_the_same_with_its_own_settings(make_run: Callable[..., Path]) -> None:
    run, other = make_run(), make_run("other")
    whole, _, second = measure(run, overrides=["generation.num_beams=1"], against=[other])
    assert [(call[0], call[2]) for call in StandIn.calls] == [("other", {}), ("run", {"num_beams": 1})]
    assert StandIn.calls[0][1] == StandIn.calls[1][1]
    assert second.baseline is not None
    assert (second.scores["exact_match"], second.baseline.scores["exact_match"]) == (0, 100)
    assert whole.p_values.keys() == {"exact_match"}


def test_comparing_does_not_keep_a_measurement_from_the_report(make_run: Callable[..., Path]) -> None:
    run = make_run()
    measure(run, against=[make_run("other")])
    assert json.loads((run / "report.json").read_text())["test"]["scores"]["exact_match"] == 50


def test_a_file_of_translations_has_a_line_for_each_pair(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = make_run(group_references=True)
    (tmp_path / "lines").write_text("un\nzwei\neins\ndrei\n")
    whole, first, second = measure(run, against=[tmp_path / "lines"])
    assert [outcome.baseline.hypotheses for outcome in (whole, first, second) if outcome.baseline] == [
        ["un", "zwei", "drei"],
        ["un", "zwei"],
        ["drei"],
    ]
    (tmp_path / "lines").write_text("un\n")
    with pytest.raises(InvalidDataError, match=r"lines has 1 lines, but data.test has 4"):
        measure(run, against=[tmp_path / "lines"])
    assert len(StandIn.calls) == 1  # that is found before anything is translated


# The command


def test_the_command_measures_splits_and_files(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = make_run()
    lines = evaluate(run, "--report", tmp_path / "page.html").stdout.splitlines()
    assert lines[0].split("  ")[-1].strip() == "test: b.en"
    assert lines[2].split() == ["exact_match", "50.00", "±", "50.00", "66.67", "±", "50.00", "0.00", "±", "0.00"]
    assert "<bdi>test: b.en</bdi>" in (tmp_path / "page.html").read_text()
    given = ["--source", tmp_path / "a.en", "--reference", tmp_path / "a.de", "--metric", "chrf++", "--lowercase"]
    found = json.loads(evaluate(run, *given, "--json").stdout)["a.en"]["scores"]
    assert found.keys() == {"chrf++", "chrf++_signature"}
    assert "case:lc" in found["chrf++_signature"]
    done = evaluate(run, "--metric", "bleu", "--tokenize", "char", "--split", "validation", "--json")
    assert "tok:char" in json.loads(done.stdout)["validation"]["scores"]["bleu_signature"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metric", "blue"], "Error: training.metrics: unknown metric 'blue': the nearest is 'bleu'"),
        (["training.max_steps=1"], "Error: 'training.max_steps=1': an evaluation does not depend on this key"),
        (["--against", "nowhere"], "'nowhere' does not exist"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(make_run: Callable[..., Path], arguments: list[str], message: str) -> None:
    done = evaluate(make_run(), *arguments)
    assert done.exit_code != 0
    assert message in done.stderr
    assert done.stdout == ""


def test_a_directory_that_is_no_run_is_named(tmp_path: Path) -> None:
    done = evaluate(tmp_path)
    assert done.exit_code == 1
    assert f"Error: {tmp_path} has no recipe.yaml" in done.stderr


def test_a_model_without_a_recipe_is_measured_in_two_steps_and_told_so(tmp_path: Path) -> None:
    (tmp_path / "source").write_text("a\n")
    done = evaluate(tmp_path, "--source", tmp_path / "source", "--reference", tmp_path / "source")
    assert done.exit_code == 1
    assert f"hf-vanilla translate {tmp_path}" in done.stderr
    assert "hf-vanilla evaluate --hypothesis" in done.stderr


@pytest.mark.parametrize("name", METRICS)
def test_the_best_checkpoint_is_chosen_by_what_is_better_in_a_metric(make_run: Callable[..., Path], name: str) -> None:
    recipe = load_recipe(make_run(metrics=[name], metric_for_best_model=name) / "recipe.yaml")
    assert recipe.greater_is_better != METRICS[name].lower_is_better


def test_corpora_have_names_that_differ() -> None:
    table = Table(Path("x/words.tsv"), (0,), 1)
    corpora = [table, ParallelText(Path("a.en"), Path("a.de")), table, HubDataset("org/set", ("en",), "de")]
    names = measuring.names_of([*corpora, GeneratedPairs("spoken_forms", "test", 5)])
    assert names == ["words.tsv (1)", "a.en", "words.tsv (3)", "org/set", "spoken_forms"]
