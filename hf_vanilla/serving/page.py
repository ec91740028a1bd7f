"""The page for people: the one that an export has, which here sends text to this server and nowhere else."""

from importlib.resources import files

from ..inference.languages import UNKNOWN_SOURCE, UNKNOWN_TARGET, Languages
from ..translation_page import WIDTHS, TranslationPage
from .limits import Limits

SCRIPT = "on_server.mjs"
ABOUT = "This page sends what you write to the server that it comes from, which translates it."
WIDTH = 4  # translations at first


def page_of(languages: Languages, limits: Limits, columns: int) -> TranslationPage:
    widths = [width for width in WIDTHS if width <= 1 + limits.max_alternatives]
    known = [
        name if name not in (UNKNOWN_SOURCE, UNKNOWN_TARGET) else "" for name in (languages.source, languages.target)
    ]
    return TranslationPage(
        title=" to ".join(known) if all(known) else "Translate",
        script=SCRIPT,
        about=ABOUT,
        columns=columns,
        widths=widths,
        width=min(WIDTH, widths[-1]),
        languages=(known[0], known[1]),
    )


def files_of(page: TranslationPage) -> dict[str, str]:
    """All files of the page, by name."""
    script = (files(__package__) / SCRIPT).read_text(encoding="utf-8")
    return page.files() | {SCRIPT: script}
