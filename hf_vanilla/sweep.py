"""
Trains every combination of given values of a recipe's keys, each by `hf-vanilla train` in a run directory of its own.

A training has a process of its own, so that one that diverges or dies does not end the others.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from types import FrameType
from typing import Any

import yaml

from .evaluation.measurements import Measurement, read_report, weights_of
from .files import write_whole
from .messages import say
from .run_directory import HISTORY, RECIPE, WEIGHTS, checkpoints_of, step_of
from .training import yaml12
from .training.recipe import Recipe, RecipeError, load_recipe
from .training.stopping import TrainingStoppedError

LONGEST_NAME = 100  # of a run directory
STOPPED = {128 + number: number for number in (signal.SIGINT, signal.SIGTERM)}  # exit codes of `train`
ERROR = "Error: "  # begins what `train` says of a training that failed
SEED = "training.seed"


@dataclass
class Combination:
    """
    One value for each key, and its run.

    Args:
        overrides: All that are given to `train`.
        values: Of the keys that have several values in the sweep.
        problem: Why there are no scores.
        scores: By split, as in report.json.
    """

    overrides: list[str]
    values: dict[str, Any]
    run: Path
    recipe: Recipe | None = None
    problem: str = ""
    scores: Mapping[str, Measurement] = field(default_factory=dict)


def values_of(override: str) -> tuple[str, list[Any]]:
    """
    The key and the values of `section.key=a,b,c` or `section.key=[a,b,c]`, each in YAML.

    A single value that is a list itself is written `[[a,b]]`.
    """
    key, equals, text = override.partition("=")
    if not equals:
        raise RecipeError(f"{override!r}: give section.key=a,b,c")
    try:
        values = yaml12.load(f"[{text}]")
    except yaml.YAMLError:
        raise RecipeError(f"{override!r}: {text!r} is not a list of values in YAML") from None
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    return key, values or [None]


def combinations(recipe: Path, overrides: Sequence[str], folder: Path) -> list[Combination]:
    """All of them, the last key changing fastest. Those whose recipe is refused have that as their problem."""
    keys = [values_of(override) for override in overrides]
    twice = [key for key, number in Counter(key for key, _ in keys).items() if number > 1]
    if twice:
        raise RecipeError(f"{twice[0]}: is given twice: give all its values at once")
    swept = [key for key, values in keys if len(values) > 1]
    found = []
    for chosen in product(*(values for _, values in keys)):
        given = dict(zip((key for key, _ in keys), chosen, strict=True))
        texts = [f"{key}={yaml12.dump_line(value)}" for key, value in given.items()]
        values = {key: given[key] for key in swept}
        found.append(Combination(texts, values, folder / name_of(values)))
    for one in found:
        try:
            one.recipe = load_recipe(recipe, one.overrides)
        except RecipeError as error:
            one.problem = f"refused: {str(error).splitlines()[0]}"
    if all(one.recipe is None for one in found):
        raise RecipeError(found[0].problem.removeprefix("refused: "))
    return found


def name_of(values: Mapping[str, Any]) -> str:
    """Of the run with these values: `dropout=0.1,norm_first=true`. What no file should be called is replaced."""
    last = Counter(key.rpartition(".")[2] for key in values)
    parts = []
    for key, value in values.items():
        short = key.rpartition(".")[2]
        parts.append(f"{short if last[short] == 1 else key}={yaml12.dump_line(value)}")
    name = ",".join(parts) or "only"
    safe = re.sub(r"[^\w.,=+-]", "_", name)
    if safe == name and len(name) <= LONGEST_NAME:
        return name
    return f"{safe[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def sweep(recipe: Path, found: Sequence[Combination]) -> None:
    """Train and measure those that are not finished, one after the other; then all of them have scores or a problem."""
    for number, one in enumerate(found, 1):
        look_at(one)
        if one.recipe is None or one.scores:
            continue
        say(f"{number} of {len(found)}: {one.run}")
        failure_of(one).unlink(missing_ok=True)
        problem = finished(["train", str(recipe), *one.overrides, "--output", str(one.run)])
        if not problem and one.recipe.data.test:  # the training has measured the test set only
            problem = finished(["evaluate", str(one.run), "--split", "validation"])
        look_at(one)
        if problem:
            one.problem = problem
            remember(one, one.recipe)
            say(f"{one.run}: {problem}; the others go on")


def failure_of(one: Combination) -> Path:
    """Where it is remembered why a training failed: beside its run, which may have nothing in it that is foreign."""
    return one.run.with_name(f"{one.run.name}.failure.json")


def remember(one: Combination, recipe: Recipe) -> None:
    file = failure_of(one)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps({"problem": one.problem, "recipe": recipe.text}, ensure_ascii=False, indent=1) + "\n")


def remembered(one: Combination, recipe: Recipe) -> str:
    """Why the last try of exactly this recipe failed; nothing if it did not."""
    try:
        found = json.loads(failure_of(one).read_text(encoding="utf-8"))
        return str(found["problem"]) if found["recipe"] == recipe.text else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # there is none, or somebody else wrote it: no reason to stop a sweep


def look_at(one: Combination) -> None:
    """Read the scores of a run, if it is finished with the recipe of now."""
    one.scores = {}
    if one.recipe is None:
        return
    one.problem = "not begun"
    if checkpoints := checkpoints_of(one.run):
        one.problem = f"not finished (step {step_of(checkpoints[-1])})"
    one.problem = remembered(one, one.recipe) or one.problem
    needed = {"validation", "test"} if one.recipe.data.test else {"validation"}
    is_there = all((one.run / name).exists() for name in (HISTORY, WEIGHTS, RECIPE))
    if not is_there or yaml12.load((one.run / RECIPE).read_text(encoding="utf-8")) != yaml12.load(one.recipe.text):
        return
    weights, report = weights_of(one.run), read_report(one.run)
    scores = {split: report[split] for split in needed if split in report and report[split].weights == weights}
    if scores.keys() == needed:
        one.scores, one.problem = scores, ""


def finished(arguments: Sequence[str]) -> str:
    """
    Run a command of ours in a process; return what went wrong, or nothing.

    Whoever stops this process stops that one, and a command that was stopped ends the sweep.
    """
    command = [sys.executable, "-m", "hf_vanilla", *arguments]
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    # In a group of its own, as a terminal sends Ctrl-C to all of a group: a second signal would stop it at once.
    with subprocess.Popen(command, process_group=0, **streams) as process:  # noqa: S603
        signals: list[int] = []

        def pass_on(number: int, _: FrameType | None) -> None:
            signals.append(number)
            process.send_signal(number)

        before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            last = errors_shown(process)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    code = process.returncode
    stopped = STOPPED.get(code) or (-code if -code in STOPPED.values() else None)
    if stopped or signals:  # whatever the process did about a signal
        raise SweepStoppedError(stopped or signals[0])
    return "" if code == 0 else f"failed: {last or f'exit code {code}'}"


class SweepStoppedError(TrainingStoppedError):
    """The training that was going on was stopped, and so is the sweep."""

    def __init__(self, number: int):
        super().__init__(number, 0)
        self.args = ("the sweep was stopped; the same command goes on",)


def errors_shown(process: subprocess.Popen[bytes]) -> str:
    """Show what the process writes to stderr as it comes; return the last line that says what went wrong."""
    assert process.stderr is not None  # noqa: S101 -- it is a pipe
    tail = b""
    while piece := os.read(process.stderr.fileno(), 1 << 16):
        sys.stderr.buffer.write(piece)
        sys.stderr.flush()
        tail = (tail + piece)[-(1 << 16) :]
    process.wait()
    lines = [line for line in re.split(r"[\r\n]+", tail.decode(errors="replace")) if line.strip()]
    said = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)] or lines
    return said[-1].strip() if said else ""


@dataclass(frozen=True)
class OverSeeds:
    """
    Trainings that differ only in their seed, and are finished.

    Args:
        values: Of the other keys.
        scores: For each split and score the mean and the standard deviation (that of a sample).
    """

    values: dict[str, Any]
    seeds: list[Any]
    scores: Mapping[str, Mapping[str, tuple[float, float]]]


def over_seeds(found: Sequence[Combination]) -> list[OverSeeds]:
    """One for all those with the same other values, if at least two of them are finished."""
    groups: dict[str, list[Combination]] = {}
    for one in found:
        if SEED in one.values and one.scores:
            groups.setdefault(yaml12.dump_line(without_seed(one.values)), []).append(one)
    return [
        OverSeeds(without_seed(ones[0].values), [one.values[SEED] for one in ones], spread_of(ones))
        for ones in groups.values()
        if len(ones) > 1
    ]


def without_seed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != SEED}


def spread_of(ones: Sequence[Combination]) -> dict[str, dict[str, tuple[float, float]]]:
    """Of each score that all of them have."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for split in ones[0].scores:
        each = [dict(numbers_of(one.scores[split])) for one in ones]
        columns = {
            name: [scores[name] for scores in each] for name in each[0] if all(name in scores for scores in each)
        }
        found[split] = {name: (mean(scores), stdev(scores)) for name, scores in columns.items()}
    return found


def facts(found: Sequence[Combination]) -> list[dict[str, Any]]:
    """For JSON: all trainings, then for those that differ only in their seed what they have in common."""
    return [*map(facts_of, found), *map(facts_of_seeds, over_seeds(found))]


def facts_of_seeds(group: OverSeeds) -> dict[str, Any]:
    scores = {
        split: {name: {"score": average, "standard_deviation": spread} for name, (average, spread) in each.items()}
        for split, each in sorted(group.scores.items(), reverse=True)
    }
    return {"values": group.values, "seeds": group.seeds, "run": None, "problem": None, "scores": scores}


def facts_of(one: Combination) -> dict[str, Any]:
    scores = {
        split: {
            name: {"score": score} | ({"ci": measured.confidence[name].ci} if name in measured.confidence else {})
            for name, score in numbers_of(measured)
        }
        for split, measured in sorted(one.scores.items(), reverse=True)
    }
    return {"values": one.values, "run": str(one.run), "problem": one.problem or None, "scores": scores}


def table(found: Sequence[Combination]) -> str:
    """
    In Markdown: a row for each combination, with half the width of the confidence intervals; then one for those that
    differ only in their seed, with the mean and the standard deviation (sd).
    """
    splits = [split for split in ("validation", "test") if any(split in one.scores for one in found)]
    measured = {split: next(one.scores[split] for one in found if split in one.scores) for split in splits}
    columns = [(split, name) for split in splits for name, _ in numbers_of(measured[split])]
    swept, groups = list(found[0].values), over_seeds(found)
    head = [*(swept or ["run"]), *(f"{split} {name}" for split, name in columns), ""]
    rows = [[*values_shown(one), *(cell_of(one, *column) for column in columns), one.problem] for one in found]
    rows += [[*seeds_shown(group, swept), *(mean_of(group, *column) for column in columns), ""] for group in groups]
    return "\n".join("| " + " | ".join(map(escaped, row)) + " |" for row in [head, ["---"] * len(head), *rows])


def numbers_of(measured: Measurement) -> Iterator[tuple[str, float]]:
    for name, score in measured.scores.items():
        if isinstance(score, float) and not name.startswith("bleu_"):
            yield name, score


def values_shown(one: Combination) -> list[str]:
    return [yaml12.dump_line(value) for value in one.values.values()] or [one.run.name]


def seeds_shown(group: OverSeeds, swept: Sequence[str]) -> list[str]:
    return [f"mean of {len(group.seeds)}" if key == SEED else yaml12.dump_line(group.values[key]) for key in swept]


def mean_of(group: OverSeeds, split: str, name: str) -> str:
    found = group.scores.get(split, {}).get(name)
    return f"{found[0]:.2f} (sd {found[1]:.2f})" if found else ""


def cell_of(one: Combination, split: str, name: str) -> str:
    if split not in one.scores or name not in one.scores[split].scores:
        return ""
    found = one.scores[split]
    interval = f" ± {found.confidence[name].ci:.2f}" if name in found.confidence else ""
    return f"{found.scores[name]:.2f}{interval}"


def escaped(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
