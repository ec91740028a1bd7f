"""The command line from text to a measured model: train, stop, go on, translate, evaluate, average; and its errors."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import warm
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla.data.spoken import spoken_pairs
from hf_vanilla_cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
SMALL = {
    "data.train.size": 400,
    "data.validation.size": 20,
    "data.test.size": 20,
    "tokenizer.dropout": 0.1,
    "model.d_model": 32,
    "model.d_ff": 64,
    "training.max_tokens": 512,
    "training.max_steps": 90,
    "training.warmup_steps": 5,
    "training.learning_rate": 0.005,
    "training.eval_steps": 30,
    "training.save_steps": 30,
    "training.logging_steps": 10,
    "training.average_checkpoints": 2,
}
TRAIN = ["train", str(ROOT / "configs" / "quickstart.yaml"), *(f"{key}={value}" for key, value in SMALL.items())]


def run(
    *command: str, stdin: str = "", launcher: tuple[str, ...] = ("-m", "hf_vanilla")
) -> subprocess.CompletedProcess:
    return warm.run([sys.executable, *launcher, *command], stdin)


def succeed(*command: str, **options: object) -> str:
    done = run(*command, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    scores = json.loads(succeed(*TRAIN, "--output", str(folder), "--json"))
    assert set(scores) == {"exact_match", "character_error_rate"}
    return folder


def test_help_has_a_whole_sentence_for_each_command_in_the_order_of_work() -> None:
    shown = CliRunner().invoke(main, ["--help"]).stdout
    assert re.findall(r"^  ([a-z]+) ", shown.partition("Commands:")[2], re.MULTILINE) == [
        each.name for each in COMMANDS
    ]
    assert "..." not in shown.replace("[ARGS]...", "")
    for name in ("check", "train", "sweep"):
        shown = " ".join(CliRunner().invoke(main, [name, "--help"]).stdout.split())
        assert "RECIPE is a YAML file, or the name of a recipe that `hf-vanilla recipes` lists." in shown


def test_training_leaves_an_ordinary_model_with_its_recipe_report_and_history(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "modeling_vanilla.py",
    } <= names
    assert {
        "README.md",
        "recipe.yaml",
        "report.json",
        "history.json",
        "checkpoint-30",
        "checkpoint-60",
        "checkpoint-90",
    } <= names
    assert not [name for name in names if "partial" in name]
    assert (trained / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (trained / "attention.svg").read_bytes().startswith(b"<?xml")
    assert "![Attention](attention.svg)" in (trained / "README.md").read_text(encoding="utf-8")
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(trained), AutoTokenizer.from_pretrained(trained)
    assert model.config.vocab_size == len(tokenizer)
    history = json.loads((trained / "history.json").read_text())
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert all(entry["target_tokens_per_second"] > 0 for entry in history if "loss" in entry)
    assert [entry["step"] for entry in history if "eval_exact_match" in entry] == [30, 60, 90]


def test_the_model_is_the_average_of_its_last_checkpoints(trained: Path) -> None:
    found = load_file(trained / "model.safetensors")
    parts = [load_file(trained / f"checkpoint-{step}" / "model.safetensors") for step in (60, 90)]
    for name, weight in found.items():
        torch.testing.assert_close(weight, (parts[0][name] + parts[1][name]) / 2)


def test_the_same_command_goes_on_where_a_run_was_stopped(trained: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    shutil.copytree(trained, stopped)
    for name in ("checkpoint-60", "checkpoint-90"):
        shutil.rmtree(stopped / name)
    (stopped / "model.safetensors").unlink()
    succeed(*TRAIN, "--output", str(stopped))
    expected = load_file(trained / "checkpoint-90" / "model.safetensors")
    found = load_file(stopped / "checkpoint-90" / "model.safetensors")
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_lines_are_translated_in_order_and_empty_ones_stay_empty(trained: Path, tmp_path: Path) -> None:
    lines = ["noon", "", "the twenty third of march two thousand and five", "   ", "noon"]
    found = succeed("translate", str(trained), stdin="\n".join(lines) + "\n").split("\n")
    assert len(found) == len(lines) + 1
    assert [found[1], found[3], found[5]] == ["", "", ""]
    assert found[0] == found[4] != ""
    (tmp_path / "in").write_text("\n".join(lines))  # without the last line end
    succeed("translate", str(trained), "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"))
    assert (tmp_path / "out").read_text().split("\n") == found


def test_evaluating_gives_the_report_of_the_training(trained: Path) -> None:
    report = json.loads((trained / "report.json").read_text())
    found = json.loads(succeed("evaluate", str(trained), "--json"))["test"]
    assert {key: report["test"][key] for key in ("scores", "confidence", "sentences")} == {
        key: found[key] for key in ("scores", "confidence", "sentences")
    }
    assert json.loads((trained / "report.json").read_text()) == report
    lines = succeed("evaluate", str(trained), "--split", "validation").splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["validation", "sentences", "exact_match"]
    assert f"| validation | exact_match | {lines[2].split(maxsplit=1)[1]} |" in (trained / "README.md").read_text()


@pytest.mark.parametrize(("choice", "steps"), [("--last", [90]), ("--best", None)])
def test_averaging_again_replaces_the_weights(
    trained: Path, tmp_path: Path, choice: str, steps: list[int] | None
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    done = run("average", str(folder), choice, "1")
    assert done.returncode == 0, done.stderr
    if steps is None:
        history = json.loads((folder / "history.json").read_text())
        scores = {entry["step"]: entry["eval_exact_match"] for entry in history if "eval_exact_match" in entry}
        steps = [step for step in scores if scores[step] == max(scores.values())]
    (named,) = (int(step) for step in re.findall(r"checkpoint-(\d+)", done.stderr))
    assert named in steps
    expected = load_file(folder / f"checkpoint-{named}" / "model.safetensors")
    assert all(torch.equal(weight, expected[name]) for name, weight in load_file(folder / "model.safetensors").items())
    assert "| test | exact_match |" in (trained / "README.md").read_text()
    assert "The weights have not been measured" in (folder / "README.md").read_text()


BRIEF = {key: value for key, value in SMALL.items() if key.startswith(("model.", "training.max", "training.eval"))}


def test_the_shell_commands_of_the_documents_run(trained: Path, tmp_path: Path) -> None:
    """On spoken forms as text files, and with a training cut short; `make` is what runs these tests."""
    for split, size in (("train", 3000), ("valid", 100), ("test", 100)):
        pairs = spoken_pairs(split.replace("valid", "validation"), size)
        for suffix, texts in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{split}.{suffix}").write_text("".join(f"{text}\n" for text in texts))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "quickstart").symlink_to(trained)
    documents = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("sharing", "inspecting"))]
    blocks = [block for each in documents for block in re.findall(r"```sh\n(.*?)```", each.read_text(), re.DOTALL)]
    lines = [line.partition("#")[0] for block in blocks for line in block.splitlines() if not line.startswith("make ")]
    assert sum("hf-vanilla" in line for line in lines) >= 5
    brief = " ".join(f"{key}={value}" for key, value in BRIEF.items()) + " model.num_heads=2"
    for line in lines:
        line = line.replace(". .venv/bin/activate", "true")
        line = line.replace("hf-vanilla", f"{sys.executable} {warm.__file__} run {sys.executable} -m hf_vanilla")
        line += f" {brief}" if " train " in line else ""
        options = {"cwd": tmp_path, "env": os.environ | {warm.ADDRESS: warm.server()}, "timeout": 300, "check": False}
        done = subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True, **options)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    assert "<!doctype html>" in (tmp_path / "report.html").read_text().lower()


def test_the_translator_of_the_readme_translates(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "quickstart").symlink_to(trained)
    (tmp_path / "said.txt").write_text("noon\nmidnight\n")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (block,) = (block for block in blocks if "Translator" in block)
    done = warm.run([sys.executable, "-c", block + "assert len(best) == 3"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


WITHOUT_POSIX = """
import ctypes, os, platform, sys
import psutil, sacrebleu, tempfile  # which have code of their own for Windows

class Missing:
    def find_spec(self, name, *_):
        if name in ("resource", "fcntl"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

class Library(ctypes.CDLL):
    def __getattr__(self, name):  # of what is already loaded: of libc and libgomp
        if self._name is None:
            raise AttributeError(f"function {name!r} not found")
        return super().__getattr__(name)

def not_folders(path, *args, usual=os.open, **kwargs):
    if isinstance(path, (str, os.PathLike)) and os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return usual(path, *args, **kwargs)

sys.meta_path.insert(0, Missing())
for name in ("resource", "fcntl"):
    sys.modules.pop(name, None)
ctypes.CDLL, os.open, platform.libc_ver = Library, not_folders, lambda: ("", "")
for name in ("sysconf", "sched_getaffinity", "O_DIRECTORY"):
    delattr(os, name)

import click
from pathlib import Path
from hf_vanilla.files import write_whole
from hf_vanilla_cli import main

write_whole(Path("whole"), "text")
run, recipe = sys.argv[1:]
main(["translate", run, "--output", "translations"], standalone_mode=False)
main(["evaluate", run, "--json"], standalone_mode=False)
for command in (["train", recipe, "--output", "new"], ["check", recipe]):
    try:
        main(command, standalone_mode=False)
    except click.ClickException as error:
        print(error.message, file=sys.stderr)
"""


def test_without_what_windows_lacks_a_run_is_used_and_training_is_refused_at_once(
    trained: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", WITHOUT_POSIX, str(trained), TRAIN[1]]
    options = {"capture_output": True, "text": True, "timeout": 300, "check": False, "cwd": tmp_path}
    done = subprocess.run(command, input="noon\nmidnight\n", **options)  # imports are blocked: not a forked process
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "whole").read_text() == "text"
    assert len((tmp_path / "translations").read_text().splitlines()) == 2
    scores = json.loads((trained / "report.json").read_text())["test"]["scores"]
    assert json.loads(done.stdout)["test"]["scores"] == scores
    assert done.stderr.count("training needs Linux or macOS (Windows: WSL)") == 3  # the run cannot be locked either
    assert "report.json and the model card do not have these scores: training needs Linux" in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("processes", [1, 2])
def test_accelerate_launches_the_same_training(tmp_path: Path, processes: int) -> None:
    launcher = ("-m", "accelerate.commands.launch", "--num_processes", str(processes), "--num_machines", "1")
    launcher += ("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")
    launcher += ("--multi_gpu",) if processes > 1 else ("--cpu",)  # on CPUs too that is what starts several
    script = str(ROOT / "scripts" / "train.py")
    out = succeed(script, *TRAIN[1:], "--output", str(tmp_path / "run"), launcher=launcher)
    assert "exact_match" in out
    assert len(list((tmp_path / "run" / "checkpoint-90").glob("rng_state*.pth"))) == processes
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    assert [entry["step"] for entry in history if "eval_exact_match" in entry] == [30, 60, 90]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["train", "nowhere.yaml"], "there is no file and no recipe 'nowhere.yaml'"),
        ([*TRAIN, "training.max_stepps=3"], "Error: training: there is no key 'max_stepps'; did you mean 'max_steps'?"),
        (
            [*TRAIN, "data.train={source: a.en, target: a.de}"],
            "/a.en: cannot be read: No such file or directory",
        ),
        ([*TRAIN, "--output", "/proc/run"], "Error: [Errno 2] No such file or directory: '/proc/run'"),
        ([*TRAIN, "training.optim=nothing"], "Error: training:"),
        (["translate", "nowhere"], "'nowhere' is no directory here, and could not be downloaded from the Hub: "),
        (["score", "nobody/nothing@v1"], "'nobody/nothing@v1' is no directory here, and could not be downloaded"),
        (["translate", "../nowhere"], "'../nowhere' is no directory, and no model on the Hub can have this name: give"),
        (["translate", "nobody/nothing@../x"], "what stands after @ must be a branch, a tag or a commit, such as"),
        (["average", "."], "give either --last or --best"),
        (["average", ".", "--last", "2"], "Error:"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_said_in_one_line(
    command: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no run of `make demo` is
    done = run(*command)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_training_stops_early_when_the_validation_does_not_get_better(tmp_path: Path) -> None:
    stubborn = ["training.learning_rate=0", "training.early_stopping_patience=1", "training.average=best"]
    succeed(*TRAIN, *stubborn, "--output", str(tmp_path / "run"))
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    assert [entry["step"] for entry in history if "eval_exact_match" in entry] == [30, 60]


def test_a_card_that_cannot_be_written_stops_nothing(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    (folder / "README.md").unlink()
    (folder / "README.md.partial").mkdir()
    done = run(*TRAIN, "--output", str(folder), "--json")
    assert done.returncode == 0
    assert "the model card could not be written" in done.stderr
    assert set(json.loads(done.stdout)) == {"exact_match", "character_error_rate"}


def test_a_loss_that_is_no_number_stops_the_training_and_says_what_to_change(tmp_path: Path) -> None:
    done = run(*TRAIN, "training.learning_rate=1e30", "--output", str(tmp_path / "run"))
    assert done.returncode == 1
    assert done.stderr.count("training on the CPU, 1 thread, ") == 1
    assert "Error: the loss is" in done.stderr
    assert "lower training.learning_rate (1e+30)" in done.stderr
    assert "Traceback" not in done.stderr
