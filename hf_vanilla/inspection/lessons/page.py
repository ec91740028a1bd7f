"""All lessons as one HTML page that needs no network and no other file."""

from collections.abc import Mapping, Sequence
from importlib.resources import files

from markupsafe import Markup, escape

from ...pages import hash_of, rendered
from ...version import __version__
from .figure import inline
from .lesson import Lesson, shown


def page_of(lessons: Sequence[Lesson], pictures: Mapping[str, str]) -> str:
    """
    Args:
        pictures: The SVG of each lesson, by its name.
    """
    folder = files(__package__)
    style = (folder / "page.css").read_text(encoding="utf-8")
    drawn = {each.name: inline(pictures[each.name], each.name, str(escape(each.caption))) for each in lessons}
    return rendered(
        (folder / "page.html").read_text(encoding="utf-8"),
        lessons=lessons,
        pictures={name: Markup(svg) for name, svg in drawn.items()},  # noqa: S704 - drawn here
        shown=shown,
        style=Markup(style),  # noqa: S704 - our own file
        style_hash=hash_of(style),
        version=__version__,
    )
