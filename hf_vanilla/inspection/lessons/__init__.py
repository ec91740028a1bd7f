"""What the paper says of its parts, tried out on one core in about a minute. Needs the extra `plots`."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...files import new_folder
from .depth import depth_lesson
from .figure import svg_of
from .length import length_lesson
from .lesson import Lesson, Table
from .page import page_of
from .positions import positions_lesson
from .saturation import saturation_lesson

__all__ = ["LESSONS", "Lesson", "Table", "write_lessons"]

LESSONS: tuple[Callable[[], Lesson], ...] = (positions_lesson, saturation_lesson, length_lesson, depth_lesson)


def write_lessons(
    folder: Path, tell: Callable[[str], None] = lambda message: None, lessons: Sequence[Callable[[], Lesson]] = LESSONS
) -> dict[str, Any]:
    """
    Write `index.html`, and for each lesson its figure (SVG) and its text and numbers (Markdown; all in `lessons.json`).

    Args:
        folder: A new one.
        tell: Gets a line for each lesson.
    """
    with new_folder(folder) as partial:
        found, pictures = [], {}
        for make in lessons:
            lesson = make()
            tell(f"{lesson.name}: {lesson.title}")
            found.append(lesson)
            pictures[lesson.name] = svg_of(lesson.draw, lesson.name)
            (partial / f"{lesson.name}.svg").write_text(pictures[lesson.name], encoding="utf-8")
            (partial / f"{lesson.name}.md").write_text(lesson.as_markdown(), encoding="utf-8")
        facts = {"lessons": [lesson.as_dict() for lesson in found]}
        (partial / "lessons.json").write_text(json.dumps(facts, indent=2, ensure_ascii=False), encoding="utf-8")
        (partial / "index.html").write_text(page_of(found, pictures), encoding="utf-8")
    return facts
