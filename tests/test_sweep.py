"""`hf-vanilla sweep`: every combination is an ordinary run; what is finished stays, what fails is said."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hf_vanilla import sweep
from hf_vanilla.evaluation.measurements import Measurement, add_to_report, weights_of
from hf_vanilla.evaluation.significance import Confidence
from hf_vanilla.sweep import combinations, name_of, values_of
from hf_vanilla.training.recipe import RecipeError, load_recipe
from hf_vanilla_cli import main

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
TINY = [
    *("data.train.size=60", "data.validation.size=4", "data.test.size=4", "tokenizer.kind=character"),
    *("model.d_model=8", "model.num_heads=2", "model.d_ff=8", "model.encoder_layers=1", "model.decoder_layers=1"),
    *("training.max_steps=2", "training.eval_steps=2", "training.save_steps=2", "training.warmup_steps=1"),
    *("generation.num_beams=1", "generation.max_length=3"),
]


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("a.b=1", [1]),
        ("a.b=64,128", [64, 128]),
        ("a.b=[64,128]", [64, 128]),
        ("a.b=1e-3,2e-3", [0.001, 0.002]),
        ("a.b=true,null,x y", [True, None, "x y"]),
        ("a.b='x,y',z", ["x,y", "z"]),
        ("a.b=[['x', y]]", [["x", "y"]]),
        ("a.b=[x],[y, z]", [["x"], ["y", "z"]]),
        ("a.b={file: a.tsv, source: [0, 1]},{file: b.tsv}", [{"file": "a.tsv", "source": [0, 1]}, {"file": "b.tsv"}]),
        ("a.b=", [None]),
    ],
)
def test_values_are_written_with_commas_or_as_a_list(override: str, values: list[Any]) -> None:
    key, found = values_of(override)
    assert (key, found) == ("a.b", values)
    assert [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize("wrong", ["a.b", "a.b=[1", "a.b={x"])
def test_what_are_no_values_is_refused(wrong: str) -> None:
    with pytest.raises(RecipeError, match=r"give section\.key=a,b,c|is not a list of values"):
        values_of(wrong)


def test_every_combination_is_once_there_and_has_its_own_name(tmp_path: Path) -> None:
    given = ["model.dropout=0.1,0.2", "training.seed=1,2,3", "training.max_steps=7", "training.metrics=[[bleu, ter]]"]
    found = combinations(QUICKSTART, given, tmp_path)
    assert [tuple(one.values.values()) for one in found] == [(d, s) for d in (0.1, 0.2) for s in (1, 2, 3)]
    assert [one.run.name for one in found][:2] == ["dropout=0.1,seed=1", "dropout=0.1,seed=2"]
    for one in found:
        expected = {"model.dropout": one.values["model.dropout"], "training.seed": one.values["training.seed"]}
        keys = one.recipe.keys
        assert {key: keys[key] for key in expected} == expected
        assert (keys["training.max_steps"], one.recipe.training.metrics) == (7, ("bleu", "ter"))
        assert load_recipe(QUICKSTART, one.overrides) == one.recipe
    assert combinations(QUICKSTART, [], tmp_path)[0].run == tmp_path / "only"


def test_names_of_runs_are_names_of_files_and_differ(tmp_path: Path) -> None:
    odd = [{"a.b": value} for value in ("x/y", "x\\y", "x_y", "../..", "z" * 300, "z" * 301, [1], {"k": 1})]
    odd += [{"a.key": 1, "b.key": 2}, {"a.key": 2, "b.key": 1}]
    names = [name_of(values) for values in odd]
    assert len(set(names)) == len(names)
    for name in names:
        assert (tmp_path / name).parent == tmp_path
        assert len(name) <= 100
        (tmp_path / name).mkdir()


def test_a_key_that_is_given_twice_and_a_sweep_that_is_wrong_altogether_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"training\.seed: is given twice"):
        combinations(QUICKSTART, ["training.seed=1", "training.seed=2"], tmp_path)
    with pytest.raises(RecipeError, match="no key 'sed'; did you mean 'seed'"):
        combinations(QUICKSTART, ["training.sed=1,2"], tmp_path)


class Trainings:
    """In place of processes: each leaves what a training and an evaluation leave, or fails."""

    def __init__(self, fails: str = ""):
        self.fails, self.commands = fails, []

    def __call__(self, arguments: list[str]) -> str:
        self.commands.append(arguments)
        if arguments[0] == "train":
            recipe, *overrides, _, run = arguments[1:]
            if self.fails and self.fails in run:
                return "failed: the loss is not finite"
            folder = Path(run)
            folder.mkdir(parents=True)
            (folder / "recipe.yaml").write_text(load_recipe(Path(recipe), overrides).text)
            (folder / "history.json").write_text("[]")
            (folder / "model.safetensors").write_text(run)
            self.measure(folder, "test", 40.0)
        else:
            self.measure(Path(arguments[1]), arguments[3], 50.0)
        return ""

    def measure(self, run: Path, split: str, score: float) -> None:
        measured = Measurement(
            {"exact_match": score, "signature": "x"}, weights_of(run), (), {"exact_match": Confidence(score, 1.5)}
        )
        add_to_report(run, split, measured)


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["sweep", str(QUICKSTART), *map(str, arguments)])


def test_what_is_finished_stays_and_what_fails_is_said_while_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = Trainings(fails="seed=2")
    monkeypatch.setattr(sweep, "finished", trainings)
    given = ("model.d_model=128,30", "training.seed=1,2,3", "--output", tmp_path)
    done = command(*given)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "| model.d_model | training.seed | validation exact_match | test exact_match |  |",
        "| --- | --- | --- | --- | --- |",
        "| 128 | 1 | 50.00 ± 1.50 | 40.00 ± 1.50 |  |",
    ]
    assert lines[3] == "| 128 | 2 |  |  | failed: the loss is not finite |"
    assert all("refused: model: " in line for line in lines[5:8])
    assert [names[0] for names in trainings.commands] == ["train", "evaluate", "train", "train", "evaluate"]

    trainings.commands.clear()
    shown = command(*given, "--show")
    assert (shown.exit_code, trainings.commands) == (0, [])
    assert shown.stdout == done.stdout
    trainings.fails = ""
    again = json.loads(command(*given, "--json").stdout)
    assert [names[0] for names in trainings.commands] == ["train", "evaluate"]
    assert again[1]["values"] == {"model.d_model": 128, "training.seed": 2}
    assert again[1]["scores"]["test"] == {"exact_match": {"score": 40.0, "ci": 1.5}}
    assert (again[1]["problem"], again[3]["scores"]) == (None, {})


def test_why_a_training_failed_is_remembered_until_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = Trainings(fails="seed=2")
    monkeypatch.setattr(sweep, "finished", trainings)
    given = ("training.seed=1,2", "--output", tmp_path)
    assert command(*given).exit_code == 1
    assert "| failed: the loss is not finite |" in command(*given, "--show").stdout
    assert "not finite" not in command(*given, "training.max_steps=9", "--show").stdout  # another recipe
    assert sorted(file.name for file in tmp_path.iterdir()) == ["seed=1", "seed=2.failure.json"]

    def stopped(arguments: list[str]) -> str:
        raise sweep.SweepStoppedError(signal.SIGINT)

    monkeypatch.setattr(sweep, "finished", stopped)
    assert command(*given).exit_code == 130
    assert "| not begun |" in command(*given, "--show").stdout
    (tmp_path / "seed=2.failure.json").write_text("[]")
    assert "| not begun |" in command(*given, "--show").stdout


class OfSeeds(Trainings):
    """Each training has another score on the test set."""

    scores = iter(())

    def measure(self, run: Path, split: str, score: float) -> None:
        super().measure(run, split, next(self.scores) if split == "test" else score)


def test_trainings_that_differ_only_in_their_seed_have_a_row_with_mean_and_standard_deviation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = OfSeeds(fails="seed=4")
    trainings.scores = iter([10.0, 20.0, 13.0, 21.0, 19.0, 23.0])
    monkeypatch.setattr(sweep, "finished", trainings)
    given = ("training.seed=1,2,3,4", "model.dropout=0.1,0.2", "--output", tmp_path)
    done = command(*given)
    assert done.stdout.splitlines()[-2:] == [
        "| mean of 3 | 0.1 | 50.00 (sd 0.00) | 14.00 (sd 4.58) |  |",  # of 10, 13, 19: sqrt((16 + 1 + 25) / 2)
        "| mean of 3 | 0.2 | 50.00 (sd 0.00) | 21.33 (sd 1.53) |  |",
    ]
    facts = json.loads(command(*given, "--json", "--show").stdout)
    assert len(facts) == 8 + 2
    last = facts[-1]
    assert (last["values"], last["seeds"], last["run"]) == ({"model.dropout": 0.2}, [1, 2, 3], None)
    found = last["scores"]["test"]["exact_match"]
    assert found["score"] == pytest.approx(64 / 3)
    assert found["standard_deviation"] == pytest.approx((7 / 3) ** 0.5)


def test_one_finished_seed_has_no_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "finished", Trainings(fails="seed=2"))
    for values in ("training.seed=1,2", "model.dropout=0.1,0.2", "model.dropout=0.1,0.1"):
        lines = command(values, "--output", tmp_path).stdout.splitlines()
        assert len(lines) == 2 + 2
        assert "mean" not in "".join(lines)


def test_scores_of_other_weights_or_of_another_recipe_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "finished", Trainings())
    assert command("training.seed=1,2", "--output", tmp_path).exit_code == 0
    (tmp_path / "seed=1" / "model.safetensors").write_text("other")
    lines = command("training.seed=1,2", "--output", tmp_path, "--show").stdout.splitlines()
    assert [line.endswith("| not begun |") for line in lines[2:]] == [True, False]
    lines = command("training.seed=1,2", "training.max_steps=9", "--output", tmp_path, "--show").stdout.splitlines()
    assert all(line.endswith("| not begun |") for line in lines[2:])


def test_a_sweep_under_a_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "start it without a launcher" in command("training.seed=1,2").stderr


def test_real_trainings_are_runs_with_scores(tmp_path: Path) -> None:
    given = (*TINY, "model.dropout=0.1,1.5", "--output", tmp_path / "runs")
    done = command(*given, "--json")
    assert done.exit_code == 1, done.output
    first, second = json.loads(done.stdout)
    assert {split: set(found) for split, found in first["scores"].items()} == {
        split: {"exact_match", "character_error_rate"} for split in ("validation", "test")
    }
    assert "ci" in first["scores"]["test"]["exact_match"]
    assert "dropout" in second["problem"]
    before = (tmp_path / "runs" / "dropout=0.1" / "report.json").stat().st_mtime_ns
    assert command(*given).exit_code == 1
    assert (tmp_path / "runs" / "dropout=0.1" / "report.json").stat().st_mtime_ns == before


WAITS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(CODE))
print("ready", file=sys.stderr, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("code", [143, 0, 1])  # also of a training that had just ended, or had not quite begun
def test_whoever_stops_the_sweep_stops_the_training(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    usual, waits = subprocess.Popen, WAITS.replace("CODE", str(code))
    monkeypatch.setattr(sweep.subprocess, "Popen", lambda _, **options: usual([sys.executable, "-c", waits], **options))
    monkeypatch.setattr(
        sweep, "errors_shown", lambda process: (process.stderr.readline(), interrupt(), process.wait(), "")[-1]
    )
    before = signal.getsignal(signal.SIGTERM)

    def interrupt() -> None:
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM)).start()

    with pytest.raises(sweep.SweepStoppedError) as stopped:
        sweep.finished(["train"])
    assert stopped.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.stderr.write('50%\\rError: the loss is NaN\\nbye\\n'); sys.exit(1)", "the loss is NaN"),
        ("raise ValueError('odd')", "ValueError: odd"),
        ("import os; os._exit(7)", "exit code 7"),
    ],
)
def test_why_a_training_failed_is_its_last_error(code: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = subprocess.Popen
    monkeypatch.setattr(sweep.subprocess, "Popen", lambda _, **options: usual([sys.executable, "-c", code], **options))
    assert sweep.finished(["train"]) == f"failed: {said}"
