"""
Measurements in turn: A B A B ..., each in a process of its own.

The speed of a machine changes with its temperature and its other work. So contenders are compared within a round, in
which they are measured one after another.
"""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any

from ..messages import say

Figures = Mapping[str, float]
Row = dict[str, Any]


def measured_rows(what: str, contenders: Mapping[str, Callable[[], Figures]], rounds: int) -> list[Row]:
    """
    Measure each contender in each round, and summarise: a row for each figure of each contender.

    A row has the median, lowest and highest value of all rounds. It has the same of the ratio "first contender / this
    one" of each round, where the ratio counts as 0 if this contender's figure is 0.
    """
    found: dict[str, list[Figures]] = {name: [] for name in contenders}
    for number in range(1, rounds + 1):
        for name, contender in contenders.items():
            found[name].append(in_a_fresh_process(contender))
            figures = ", ".join(f"{figure} {value:.4g}" for figure, value in found[name][-1].items())
            say(f"round {number} of {rounds}  {what}  {name}: {figures}")
    (first, *_) = found.values()
    return [
        {"what": what, "contender": name, "figure": figure}
        | _spread("", [own[figure] for own in figures])
        | _spread(
            "ratio",
            [ours[figure] / own[figure] if own[figure] else 0.0 for ours, own in zip(first, figures, strict=True)],
        )
        for name, figures in found.items()
        for figure in figures[0]
    ]


def in_a_fresh_process(function: Callable[[], Figures]) -> Figures:
    """A contender's settings, memory and compiled code must not change the figures of the next one."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function).result()


def _spread(name: str, figures: Sequence[float]) -> dict[str, float]:
    values = {"median": median(figures), "lowest": min(figures), "highest": max(figures)}
    return {f"{name} {key}".strip(): value for key, value in values.items()}


def table(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown."""
    lines = [["", "", "", "median", "lowest to highest", "first / this"], ["---"] * 6]
    for row in rows:
        spread = f"{_short(row['lowest'])} to {_short(row['highest'])}"
        ratio = f"{row['ratio median']:.2f} ({row['ratio lowest']:.2f} to {row['ratio highest']:.2f})"
        names = [row["what"], row["contender"], row["figure"]]
        lines.append([*names, _short(row["median"]), spread, ratio])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
