"""
Interleaved measurements: A B A B ..., each in a process of its own.

Machines are noisy, and get warm and busy: a ratio within a round is worth more than two figures of different times.
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
    A row for each figure of each contender: the middle one of all rounds, the lowest and the highest, and the same of
    the ratio of the first contender to this one within a round, 0 where there is nothing to divide by.
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
    """So that nothing that one contender sets, keeps or compiles helps or hinders another."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function).result()


def _spread(name: str, figures: Sequence[float]) -> dict[str, float]:
    values = {"median": median(figures), "lowest": min(figures), "highest": max(figures)}
    return {f"{name} {key}".strip(): value for key, value in values.items()}


def table(rows: Sequence[Row]) -> str:
    """For people, and for a README: Markdown."""
    lines = [["", "", "", "median", "lowest to highest", "first / this"], ["---"] * 6]
    for row in rows:
        spread = f"{_short(row['lowest'])} to {_short(row['highest'])}"
        ratio = f"{row['ratio median']:.2f} ({row['ratio lowest']:.2f} to {row['ratio highest']:.2f})"
        names = [row["what"], row["contender"], row["figure"]]
        lines.append([*names, _short(row["median"]), spread, ratio])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
