"""`hf-vanilla evaluate` of files of translations: fast, without PyTorch, and what is wrong is said in one line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hf_vanilla.evaluation.metrics import METRICS
from hf_vanilla_cli import main

GIVEN = {
    "hyp": "a cat sat\non the mat\n",
    "ref": "the cat sat\non the mat\n",
    "other": "x\ny\n",
    "src": "s\nt\n",
    "short": "one line\n",
    "empty": "",
}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in GIVEN.items():
        Path(name).write_text(text)
    Path("latin").write_bytes(b"caf\xe9\nx\n")
    Path("folder").mkdir()


def evaluate(arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["evaluate", *arguments.split()], input=stdin)


def measured(arguments: str, stdin: str | None = None) -> dict[str, Any]:
    done = evaluate(f"{arguments} --json", stdin)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_translations_are_measured_without_importing_pytorch(tmp_path: Path) -> None:
    code = (
        "import sys; from hf_vanilla_cli import main; main(sys.argv[1:], standalone_mode=False);"
        "heavy = ('torch', 'transformers', 'datasets', 'evaluate', 'accelerate', 'pandas', 'pyarrow');"
        "print([name for name in heavy if name in sys.modules], 'hf_vanilla' in sys.modules);"
        "import hf_vanilla; print(hf_vanilla.__version__, 'hf_vanilla.evaluation.metrics' in sys.modules)"
    )
    arguments = ["evaluate", "--hypothesis", "hyp", "--reference", "ref", "--report", "page.html"]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300, "check": False}
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", code, *arguments], env=environment, **options)
    assert done.returncode == 0, done.stderr
    *table, imported, afterwards = done.stdout.splitlines()
    assert table[0].split() == ["ref"]
    assert imported == "[] False"  # the package can be imported as usual afterwards
    assert afterwards.endswith(" False")
    assert Path("page.html").read_text().startswith("<!doctype html>")


def test_all_metrics_are_measured_or_the_chosen_ones() -> None:
    assert set(METRICS) <= measured("--hypothesis hyp --reference ref")["ref"]["scores"].keys()
    found = measured("--hypothesis hyp --reference ref --metric ter --metric exact_match")["ref"]
    assert found["scores"].keys() == {"ter", "ter_signature", "exact_match"}
    assert found["scores"]["exact_match"] == 50
    table = evaluate("--hypothesis hyp --reference ref --metric exact_match").stdout.splitlines()
    assert table[2].split()[:2] == ["exact_match", "50.00"]


def test_the_help_names_all_metrics() -> None:
    (names,) = re.findall(r"--metric NAME (.*?); repeat it", " ".join(evaluate("--help").stdout.split()))
    assert set(re.split(", | or ", names)) == set(METRICS)


def test_references_belong_to_the_test_sets_in_order() -> None:
    one = measured("--hypothesis other --reference ref --reference other --metric exact_match")
    assert one["ref"]["scores"]["exact_match"] == 100
    two = measured(
        "--hypothesis hyp --reference other --reference hyp --hypothesis hyp --reference ref --reference other"
        " --name first --name second --metric exact_match"
    )
    assert {name: entry["scores"]["exact_match"] for name, entry in two.items()} == {"first": 100, "second": 50}


def test_test_sets_have_the_names_of_their_files_as_far_as_these_differ() -> None:
    for path in ("folder/ref", "ref"):
        Path(path).write_text(GIVEN["ref"])
    assert list(measured("--hypothesis hyp --source src --reference ref --metric ter")) == ["src"]
    two = measured("--hypothesis hyp --reference ref --hypothesis hyp --reference folder/ref --metric ter")
    assert list(two) == ["ref", "folder/ref"]
    systems = measured("--hypothesis hyp --reference ref --hypothesis other --reference ref --metric ter")
    assert list(systems) == ["hyp", "other"]


def test_translations_can_come_from_a_pipe() -> None:
    found = measured("--hypothesis - --reference ref --metric exact_match", GIVEN["ref"])
    assert found["ref"]["scores"]["exact_match"] == 100


def test_another_system_is_compared() -> None:
    found = measured("--hypothesis ref --reference ref --against other --metric exact_match")["ref"]
    assert (found["system"], found["against"]["system"]) == ("ref", "other")
    assert found["against"]["scores"]["exact_match"] == 0
    assert found["against"]["p_values"]["exact_match"] < 0.01


def test_a_report_that_is_written_replaces_an_earlier_one_as_a_whole() -> None:
    Path("page.html").write_text("old")
    assert evaluate("--hypothesis hyp --reference ref --report page.html").exit_code == 0
    assert Path("page.html").read_text().rstrip().endswith("</html>")
    assert not list(Path().glob("*.partial"))


def test_a_report_that_is_a_link_or_a_pipe_stays_one() -> None:
    Path("link.html").symlink_to("folder/page.html")
    assert evaluate("--hypothesis hyp --reference ref --report link.html").exit_code == 0
    assert Path("link.html").is_symlink()
    os.mkfifo("pipe.html")
    read: list[str] = []
    reader = Thread(target=lambda: read.append(Path("pipe.html").read_text()), daemon=True)
    reader.start()
    assert evaluate("--hypothesis hyp --reference ref --report pipe.html").exit_code == 0
    assert Path("pipe.html").is_fifo()
    reader.join(60)
    assert read == [Path("folder/page.html").read_text()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give either RUN, whose translations are measured, or --hypothesis"),
        ("folder --hypothesis hyp --reference ref", "give either RUN"),
        ("--hypothesis hyp", "0 --reference for 1 test sets: give one for each"),
        ("--hypothesis hyp --hypothesis hyp --reference ref --reference ref --reference ref", "3 --reference for 2"),
        ("--hypothesis hyp --reference ref --source src --source src", "2 sources for 1 test sets"),
        ("--hypothesis hyp --reference ref --name a --name b", "2 names for 1 test sets"),
        ("--hypothesis hyp --reference ref --hypothesis hyp --reference ref --name a --name a", "of the same name"),
        ("--hypothesis hyp --reference ref --split test", "overrides, --split and --prefix are for RUN"),
        ("--hypothesis hyp --reference ref --metric blue", "unknown metric 'blue': the nearest is 'bleu'"),
        ("--hypothesis hyp --reference ref --tokenize 13b", "unknown tokenizer '13b': the nearest is '13a'"),
        ("--hypothesis hyp --reference nowhere", "'nowhere' does not exist"),
        ("--hypothesis hyp --reference ref --report no/page.html", "--report no/page.html: there is no folder no"),
        ("--hypothesis hyp --reference short", "short has 1 lines, but hyp has 2"),
        ("--hypothesis hyp --reference ref --against short", "short has 1 lines, but ref has 2"),
        ("--hypothesis hyp --reference ref --against folder", "folder: cannot be read: Is a directory"),
        ("--hypothesis empty --reference ref", "empty: is empty; there must be at least one line"),
        ("--hypothesis hyp --reference latin", "latin:1: byte 4 is not UTF-8 (0xe9)"),
        ("folder --source src", "0 --reference for 1 test sets"),
        ("folder --reference ref", "--reference needs the --source that RUN translates"),
        ("folder --split test --source src --reference ref", "give either --split or --source and --reference"),
        ("folder --prefix x", "--prefix goes with --source"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: str, message: str) -> None:
    done = evaluate(arguments)
    assert done.exit_code != 0
    assert isinstance(done.exception, SystemExit)
    assert message in done.stderr
    assert done.stdout == ""


def test_references_without_any_text_are_refused_in_one_line() -> None:
    Path("blank").write_text("\n\n")
    done = evaluate("--hypothesis hyp --reference blank --metric token_error_rate")
    assert done.exit_code == 1
    assert "Error: error rate: 6 edits per 0 tokens of reference" in done.stderr
