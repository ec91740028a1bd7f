"""`translate` and `score` on the command line: as many lines out as in, as soon as they are known, whatever happens."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pytest
import warm
from click.testing import CliRunner, Result

from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.inference import lines
from hf_vanilla.inference.lines import Line
from hf_vanilla.inference.translator import Hypothesis, Translator
from hf_vanilla_cli import main, streams

MARK = b"\xef\xbb\xbf"


class Echo:
    """In place of a model: its translation of a source shows what the source is."""

    columns = 1

    def columns_of(self, text: str, number: int) -> tuple[str, ...]:
        return (text,)

    def search(self, lines: Sequence[Line], num_return_sequences: int = 1, **options: Any) -> list[list[Hypothesis]]:
        if any(line.parts == ("fail",) for line in lines):
            raise InvalidDataError("told to fail")
        of_each = [f"{line.target}{line.parts[0]!r}" for line in lines]
        return [[Hypothesis(f"{each}{number}", -0.5) for number in range(num_return_sequences)] for each in of_each]


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Translator, "from_pretrained", lambda run, **options: Echo())


def command(*arguments: object, text: bytes = b"") -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), input=text)


@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize("from_file", [False, True])
def test_lines_are_those_of_training(from_file: bool, tmp_path: Path) -> None:
    """A byte order mark is not text, and only a line feed ends a line."""
    text = MARK + "a dog\tN\r\n\ntwo\rcats \x85\u2028x".encode()
    (tmp_path / "in").write_bytes(text)
    done = command("translate", tmp_path, *(["--input", tmp_path / "in"] if from_file else []), text=text)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [repr(line) + "0" for line in ("a dog\tN", "", "two\rcats \x85\u2028x")]
    assert done.stderr == ""  # nobody looks at a terminal


@pytest.mark.usefixtures("echo")
def test_what_is_not_utf8_is_translated_with_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "WINDOW_LINES", 2)
    done = command("translate", tmp_path, text=b"a dog\nca\xfft\n\xff\nb\n\xfe\n")
    assert done.exit_code == 0
    assert done.stdout.count("\n") == 5
    assert done.stdout.count("\ufffd") == 3
    assert done.stderr.startswith("Warning: <stdin>:2: byte 3 is not UTF-8 (0xff)")
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("echo")
def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "WINDOW_LINES", 2)
    output, partial = tmp_path / "out", tmp_path / "out.partial"
    assert command("translate", tmp_path, "--output", output, text=b"a\nb\nc").exit_code == 0
    assert output.read_text() == "'a'0\n'b'0\n'c'0\n"
    assert not partial.exists()
    done = command("translate", tmp_path, "--output", output, text=b"x\ny\nfail\n")
    assert (done.exit_code, done.stderr) == (1, "Error: told to fail\n")
    assert output.read_text() == "'a'0\n'b'0\n'c'0\n"
    assert partial.read_text() == "'x'0\n'y'0\n"
    assert command("translate", tmp_path, "--output", os.devnull, text=b"x\n").exit_code == 0
    assert not Path(f"{os.devnull}.partial").exists()


@pytest.mark.usefixtures("echo")
def test_an_output_that_is_a_link_or_a_pipe_stays_one(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    output, file, pipe = tmp_path / "out", tmp_path / "elsewhere" / "file", tmp_path / "pipe"
    output.symlink_to(file)
    for text in (b"a\n", b"b\n"):  # it leads to a file that is not there yet, and then to one that is
        assert command("translate", tmp_path, "--output", output, text=text).exit_code == 0
    assert output.is_symlink()
    assert file.read_text() == "'b'0\n"
    assert [path.name for path in file.parent.iterdir()] == ["file"]
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        assert command("translate", tmp_path, "--output", pipe, text=b"c\n").exit_code == 0
        assert read.result(timeout=60) == "'c'0\n"


@pytest.mark.usefixtures("echo")
def test_n_best_scores_and_json(tmp_path: Path) -> None:
    text = "a\u2028\nb\n".encode()
    done = command("translate", tmp_path, "--n-best", 2, "--scores", text=text)
    assert done.stdout.splitlines() == [f"-0.500000\t{each}" for each in (r"'a\u2028'0", r"'a\u2028'1", "'b'0", "'b'1")]
    done = command("translate", tmp_path, "--n-best", 2, "--scores", "--json", text=text)
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["source"] == "a\u2028"
    assert second == {
        "source": "b",
        "translations": [{"text": "'b'0", "score": -0.5}, {"text": "'b'1", "score": -0.5}],
    }
    assert json.loads(command("translate", tmp_path, "--json", text=b"b").stdout)["translations"] == [{"text": "'b'0"}]


@pytest.mark.usefixtures("echo")
def test_line_n_of_the_prefix_file_begins_line_n(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "WINDOW_LINES", 2)
    (tmp_path / "begun").write_bytes(b"x \r\n\nz \n")
    options = ("translate", tmp_path, "--prefix-file", tmp_path / "begun")
    assert command(*options, text=b"a\nb\nc\n").stdout == "x 'a'0\n'b'0\nz 'c'0\n"
    done = command(*options, text=b"a\nb\nc\nd\n")
    assert (done.exit_code, done.stderr) == (
        1,
        f"Error: {tmp_path}/begun: ends after line 3, where the input goes on\n",
    )
    done = command(*options, text=b"a\nb\n")
    assert (done.exit_code, done.stderr) == (1, f"Error: <stdin>: ends after line 2, where {tmp_path}/begun goes on\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", 1], "--seed is for --sample"),
        (["--top-k", 1], "--top-k is for --sample"),
        (["--sample", "--num-beams", 4], "it has no --num-beams 4"),
        (["--n-best", 4, "--num-beams", 3], "--n-best 4 needs --num-beams 4 or more, not 3"),
        (["--device", "nowhere"], "--device"),
        (["--device", "cuda:77"], "--device"),
        (["--dtype", "int8"], "--dtype"),
    ],
)
def test_options_that_cannot_be_are_refused_in_a_line(run: Path, options: list[object], message: str) -> None:
    done = command("translate", run, *options, text=b"a\n")
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def without(*names: str) -> Callable[[Path], None]:
    def remove(run: Path) -> None:
        for path in run.iterdir():
            if path.name.startswith(names):
                path.unlink()

    return remove


def of_another_kind(run: Path) -> None:
    (run / "config.json").write_text(json.dumps({"model_type": "gpt2"}))


@pytest.mark.parametrize("options", [[], ["--device", "cpu"]], ids=["", "device"])
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (without("model"), "has no model.safetensors"),
        (without("tokenizer"), "tokenizer"),
        (of_another_kind, "cannot be loaded as AutoModelForSeq2SeqLM: Unrecognized configuration class"),
    ],
    ids=["weights", "tokenizer", "another kind"],
)
def test_a_directory_that_is_broken_is_named_and_no_option(
    broken: Callable[[Path], None], message: str, options: list[str], run: Path
) -> None:
    broken(run)
    done = command("translate", run, *options, text=b"a\n")
    assert (done.exit_code, type(done.exception)) == (1, SystemExit)
    assert done.stderr.splitlines()[-1].startswith(f"Error: {run}")
    assert message in done.stderr.splitlines()[-1]


def test_a_bar_is_shown_to_who_looks_at_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for is_seen, is_typed in ((True, False), (False, False), (True, True)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_seen=is_seen: is_seen, raising=False)

        class Source:
            def isatty(self, is_typed: bool = is_typed) -> bool:
                return is_typed

        with streams.progress(Source()) as advance:  # type: ignore[arg-type]
            advance(4096)
        assert ("4096 lines" in capsys.readouterr().err) is (is_seen and not is_typed)


def test_n_best_scores_and_given_targets_agree(run: Path) -> None:
    """Through both commands, in float32: within 1e-4."""
    text = b"a few words\nten\n\nmore\n"
    done = command("translate", run, "--n-best", 3, "--scores", "--dtype", "float32", text=text)
    assert done.exit_code == 0, done.output
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(rows) == 12
    sources = [line for line in text.decode().splitlines() for _ in range(3)]
    pairs = "".join(f"{source}\t{target}\n" for source, (_, target) in zip(sources, rows, strict=True))
    given = command("score", run, "--normalise", "--tokens", "--dtype", "float32", text=pairs.encode())
    assert given.exit_code == 0, given.output
    compared = 0
    for (score, target), line in zip(rows, given.stdout.splitlines(), strict=True):
        value, tokens = line.split("\t")
        each = [float(token) for token in tokens.split()]
        assert math.isclose(float(value), sum(each) / len(each), abs_tol=1e-5)
        if target and len(target) < 22:  # the others were cut at the limit of length
            assert float(score) == pytest.approx(float(value), abs=1e-4)
            compared += 1
    assert compared >= 2


def test_pairs_are_two_files_or_columns(run: Path, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("a\nten\n")
    (tmp_path / "t").write_text("few\nx\ty\n")
    files = command("score", run, "--source", tmp_path / "s", "--target", tmp_path / "t", "--json", "--tokens")
    columns = command("score", run, "--json", "--tokens", text=b"a\tfew\nten\tx\ty\n")
    assert files.exit_code == 0, files.output
    assert files.stdout == columns.stdout
    assert [token for token, _ in json.loads(files.stdout.splitlines()[1])["tokens"]] == ["x", "<0x09>", "y", "</s>"]
    done = command("score", run, text=b"a\tb\nten\n")
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: <stdin>:2: has 1 columns, separated by tabs, not 2: 1 of the source and one of the target. "
        "Or give --target FILE\n",
    )


def test_alignments_stand_between_score_and_text(make_translator: Any, tmp_path: Path) -> None:
    translator = make_translator()
    chosen = {"layer": 1, "head": None, "row": "output", "source_unit": "word", "target_unit": "character"}
    translator.model.generation_config.alignment = chosen
    translator.model.save_pretrained(tmp_path)
    translator.tokenizer.save_pretrained(tmp_path)
    options = ("translate", tmp_path, "--dtype", "float32", "--alignments", "--n-best", 2)
    done = command(*options, "--scores", text=b"few words\n\na a a a a a a a\n")
    assert done.exit_code == 0, done.output
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [len(row) for row in rows] == [3] * 6
    assert rows[2][1:] == ["", ""]
    links = [tuple(map(int, link.split("-"))) for link in rows[0][1].split()]
    assert {source for source, _ in links} <= {0, 1}
    assert [target for _, target in links] == list(range(len(rows[0][2])))
    (line,) = command(*options, "--json", text=b"few words\n").stdout.splitlines()
    assert json.loads(line)["translations"][0] == {"text": rows[0][2], "alignment": [list(link) for link in links]}
    cut = command(*options, "--max-source-length", 8, text=b"a a a a a a a a\n").stdout.splitlines()
    assert [row.split("\t")[0] for row in cut] == ["", ""]


def test_without_a_chosen_attention_map_alignments_are_refused(run: Path) -> None:
    done = command("translate", run, "--alignments", text=b"ten\n")
    assert done.exit_code == 1
    assert "alignment" in done.stderr
    assert "Traceback" not in done.stderr


def python(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "hf_vanilla", *map(str, arguments)]


def test_a_typed_line_is_answered_at_once_and_a_killed_job_leaves_whole_lines(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_text("from before\n")
    with warm.Process(python("translate", run), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as typed:
        killed = warm.Process(python("translate", run, "--output", output), stdin=subprocess.PIPE)
        for text in ("ten\n", "a few words\n"):
            for process in (typed, killed):
                process.stdin.write(text)
                process.stdin.flush()
            assert typed.stdout.readline().endswith("\n")
        partial, deadline = tmp_path / "out.partial", time.monotonic() + 60
        while not (partial.exists() and partial.read_text().count("\n") == 2):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        killed.kill()
        with killed:
            pass
        typed.stdin.close()
        assert typed.stdout.read() == ""
    assert (typed.returncode, killed.returncode) == (0, -signal.SIGKILL)
    assert output.read_text() == "from before\n"
    assert partial.read_text().endswith("\n")


def test_who_stops_reading_ends_the_command_without_an_error(run: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("ten\n" + 5000 * "\n")  # so that there is a second window
    arguments = python("translate", run, "--input", tmp_path / "in", "--num-beams", 1)
    with warm.Process(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline().endswith("\n")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_two_processes_share_the_lines_and_keep_their_order(run: Path, tmp_path: Path) -> None:
    text = "".join(f"{word} {other}\n" for word in ("a", "few", "words", "") for other in ("ten", "more", "few"))
    (tmp_path / "in").write_text(text)
    arguments = ["--input", tmp_path / "in", "--n-best", 2, "--scores", "--dtype", "float32"]
    alone = command("translate", run, *arguments)
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    done = warm.run([sys.executable, *launcher, *python("translate", run, *arguments)[1:]])
    assert done.returncode == 0, done.stderr
    rows, expected = ([line.split("\t") for line in out.splitlines()] for out in (done.stdout, alone.stdout))
    assert [text for _, text in rows] == [text for _, text in expected]
    assert [float(score) for score, _ in rows] == pytest.approx([float(score) for score, _ in expected], abs=1e-4)


def test_the_defaults_that_help_names_are_those_of_the_translator() -> None:
    from hf_vanilla.inference.translator import MAX_SOURCE_LENGTH, MAX_TOKENS

    with click.Context(main) as context:
        text = main.commands["translate"].get_help(context)
    assert f"[default: {MAX_TOKENS}]" in text
    assert f"[default: {MAX_SOURCE_LENGTH}]" in text
