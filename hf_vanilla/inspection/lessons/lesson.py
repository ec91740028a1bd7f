"""What each lesson hands over: a sentence of a paper, what was found, the numbers, and how to draw them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Number = float | int | str

BLUE, ORANGE = "#3b82c4", "#c8641b"
"""Of lines: they can be seen on a light and on a dark page, and differ in shape, too."""


@dataclass(frozen=True)
class Table:
    """
    Args:
        columns: Their names.
        rows: The numbers, not rounded.
    """

    title: str
    columns: list[str]
    rows: Sequence[Sequence[Number]]


@dataclass(frozen=True)
class Lesson:
    """
    Args:
        name: Of its files.
        sentence: Of the paper that it tests, word for word.
        where: The paper and its section.
        shows: What it shows, a paragraph each, with the numbers that were found.
        caption: What the figure is, for those who do not see it.
        draw: Draws the figure on a figure of matplotlib.
    """

    name: str
    title: str
    sentence: str
    where: str
    shows: list[str]
    caption: str
    tables: list[Table]
    draw: Callable[[Any], None]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "sentence": self.sentence,
            "where": self.where,
            "shows": self.shows,
            "figure": f"{self.name}.svg",
            "caption": self.caption,
            "tables": [vars(table) for table in self.tables],
        }

    def as_markdown(self) -> str:
        lines = [f"# {self.title}", "", f"> {self.sentence}", ">", f"> {self.where}", ""]
        lines += [line for paragraph in self.shows for line in (paragraph, "")]
        lines += [f"![{self.caption}]({self.name}.svg)", ""]
        for table in self.tables:
            lines += [f"## {table.title}", "", row_of(table.columns), row_of(["---:"] * len(table.columns))]
            lines += [row_of([shown(cell) for cell in row]) for row in table.rows] + [""]
        return "\n".join(lines)


def row_of(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def shown(number: Number) -> str:
    """As people read it: three digits that count, and small numbers with their power of ten."""
    if isinstance(number, float):
        return f"{number:.3g}" if abs(number) < 1000 else f"{number:,.0f}"
    return str(number)
