"""`hf-vanilla translate` reads text as training does, and says which line cannot be read."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from hf_vanilla.inference.translator import Translator
from hf_vanilla_cli import main

MARK = b"\xef\xbb\xbf"


class Echo:
    """In place of a model: its translation of a source shows what the source is."""

    def translate(self, sources: Sequence[Sequence[str]]) -> list[str]:
        return [repr(source) for source in sources]


@pytest.fixture(autouse=True)
def _no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Translator, "from_pretrained", lambda run: Echo())


@pytest.mark.parametrize("from_file", [False, True])
def test_lines_are_those_of_training(from_file: bool, tmp_path: Path) -> None:
    """A byte order mark is not text, and only a line feed ends a line."""
    text = MARK + "a dog\tN\r\n\ntwo\rcats \x85\u2028x".encode()
    (tmp_path / "in").write_bytes(text)
    source = {"args": ["--input", str(tmp_path / "in")]} if from_file else {"args": [], "input": text}
    done = CliRunner().invoke(main, ["translate", str(tmp_path), *source.pop("args")], **source)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [repr(line) for line in (["a dog", "N"], [""], ["two\rcats \x85\u2028x"])]


def test_what_is_not_utf8_is_named_and_an_earlier_output_stays(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("from before", encoding="utf-8")
    command = ["translate", str(tmp_path), "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(main, command, input=b"a dog\nca\xfft\n")
    assert done.exit_code == 1
    assert done.stderr == "Error: <stdin>:2: byte 3 is not UTF-8 (0xff)\n"
    assert (tmp_path / "out").read_text(encoding="utf-8") == "from before"
