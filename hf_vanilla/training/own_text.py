"""Writes the recipe for a text: `configs/own_text.yaml` with the values that fit, and with what they will cost."""

import io
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from ..data.corpus import read_pairs
from ..data.dataset import lengths_of
from ..data.errors import InvalidDataError
from ..messages import say
from . import shipped, yaml12
from .check import Report, check
from .given import Given, data_section
from .preparation import prepare
from .proposal import Facts, Values, draft, look, proposal
from .recipe import Recipe, load_recipe

ANY_LENGTH = 10**9  # tokens


@dataclass(frozen=True)
class Written:
    """A recipe that was written, and what `check` says about it."""

    file: Path
    report: Report


def write_recipe(given: Given, file: Path, languages: Mapping[str, str], command: Sequence[str]) -> Written:
    """
    Look at the text, choose what fits it, take a few steps to see how long they take, and write it down.

    Args:
        languages: `source_language` and `target_language`, as far as they were said.
        command: What was typed, for the comment at the beginning of the recipe.
    """
    refuse_existing(file)
    file.parent.mkdir(parents=True, exist_ok=True)  # names of files lead through it
    folder = file.parent.resolve()
    data = data_section(given, folder) | dict(languages)
    say(f"train: {yaml12.dump_line(data['train'])}")
    facts = facts_of(data, folder)
    values = proposal(data, facts, lengths_with(draft(data, facts), folder))
    with tempfile.TemporaryDirectory() as scratch:
        report = check(loaded(values, folder, Path(scratch)), Path(scratch) / "run")
    write_new(file, filled_in(values, comment(facts, report, file, command)))
    return Written(file, report)


def copy_shipped(name: str, file: Path | None) -> Path:
    """Copy a file of ours, to edit."""
    source = shipped.named(name)
    target = file or Path(source.name)
    write_new(target, source.read_text(encoding="utf-8"))
    return target


def write_new(file: Path, text: str) -> None:
    refuse_existing(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("x", encoding="utf-8") as stream:
        stream.write(text)


def refuse_existing(file: Path) -> None:
    if file.exists():
        raise FileExistsError(f"{file} is there already, and nothing is written over: give another --output")


def facts_of(data: Mapping[str, Any], folder: Path) -> Facts:
    with tempfile.TemporaryDirectory() as scratch:
        recipe = loaded({"data": {"validation": data["train"]} | dict(data)}, folder, Path(scratch))
    corpora = recipe.data.train
    symbols = (*corpora[0].source_symbols, corpora[0].target_symbols)
    return look(read_pairs(corpora), tuple(what is not None for what in symbols))


def lengths_with(values: Values, folder: Path) -> Any:
    """The numbers of tokens in source and target of each pair, however long."""
    unlimited = {"max_source_length": ANY_LENGTH, "max_target_length": ANY_LENGTH}
    values = values | {"data": values["data"] | unlimited, "training": {"max_tokens": ANY_LENGTH}}
    with tempfile.TemporaryDirectory() as scratch, redirect_stderr(io.StringIO()):  # `check` says the same again
        prepared = prepare(loaded(values, folder, Path(scratch)), Path(scratch) / "run")
        lengths = lengths_of(prepared.train)
    if not len(lengths):
        raise InvalidDataError("data.train: in every pair the source or the target is empty")
    return lengths


def loaded(values: Values, folder: Path, scratch: Path) -> Recipe:
    """The recipe with these values, as if it stood in `folder`."""
    file = scratch / "draft.yaml"
    file.write_text(yaml12.dump(values | {"data": values["data"] | {"folder": str(folder)}}), encoding="utf-8")
    return load_recipe(file)


def comment(facts: Facts, report: Report, file: Path, command: Sequence[str]) -> str:
    """What the recipe is for, what to do with it, and what it costs."""
    lines = [f"{facts.pairs:,} pairs, looked at on {date.today()} by", f"  {shlex.join(command)}", ""]
    lines += [*next_commands(file), "", *(f"{name}: {fact}" for name, fact in report.facts.items())]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def next_commands(file: Path) -> list[str]:
    recipe, run = shlex.quote(str(file)), shlex.quote(str(Path("runs") / file.stem))
    commands = {
        f"hf-vanilla check {recipe}": "looks at the recipe and the text again",
        f"hf-vanilla train {recipe}": "trains; the same command goes on if it was stopped",
        f"hf-vanilla translate {run}": "lines in, lines out",
        f"hf-vanilla evaluate {run}": "how good it is",
    }
    width = max(map(len, commands))
    return [f"  {command:{width}}   {what}" for command, what in commands.items()]


KEY = re.compile(r"  (#?)(\w+):(?: .*)?")  # in a section, or there as a comment: with no space after the #


@dataclass(frozen=True)
class Line:
    """A line of the template. If it has a key, `counts` says that it is no comment."""

    text: str
    section: str
    key: str | None
    counts: bool


def filled_in(values: Values, comment: str) -> str:
    """
    `configs/own_text.yaml` with these values, and another comment at its beginning. What has no value becomes a
    comment, so that all explanations stay.
    """
    lines = list(template())
    numbered = [(number, line) for number, line in enumerate(lines) if line.key]
    place = {(line.section, line.key): number for number, line in reversed(numbered)}  # the first, but rather ...
    place |= {(line.section, line.key): number for number, line in numbered if line.counts}  # ... what counts
    written = [f"  #{line.text.strip()}" if line.key and line.counts else line.text for line in lines]
    for section, keys in values.items():
        for key, value in keys.items():
            written[place[section, key]] = f"  {key}: {yaml12.dump_line(value)}"
    return "\n".join([comment, *written]) + "\n"


def template() -> Iterator[Line]:
    """What stands in own_text.yaml after the comment at its beginning."""
    section, lines = "", shipped.named("own_text").read_text(encoding="utf-8").splitlines()
    for line in lines[lines.index("") :]:
        section = line.partition(":")[0] if re.match(r"\w", line) else section
        found = KEY.fullmatch(line)
        yield Line(line, section, found[2] if found else None, found is not None and not found[1])
