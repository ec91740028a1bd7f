"""
The page on which people translate, in their browser (`export --to page`) or on a server (`serve`).

Each gives a script that says how: it calls `start` of main.mjs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from ..pages import rendered

PAGE = "index.html"
COMMON = ("style.css", "main.mjs", "picture.mjs")
MOST_DRAWN = 120
"""Tokens of a source or a translation with a picture of the attention; of longer ones there is none."""
WIDTHS = (1, 2, 4, 8)
"""How many translations of a text can be compared."""


@dataclass(frozen=True)
class TranslationPage:
    """
    Args:
        script: The name of the module that begins.
        about: Where the text goes that is typed.
        columns: How many parts a source has.
        widths: How many translations there can be, and `width` which of these at first.
        prefixes: The directions or tasks to choose from.
        languages: Of sources and targets, for readers of screens; empty where nobody has said.
        may_run: What scripts may do, beyond being of the same folder, as a Content-Security-Policy says it.
        while_loading: What is said until the script has begun.
    """

    title: str
    script: str
    about: str
    columns: int
    widths: Sequence[int]
    width: int
    prefixes: Sequence[str] = ()
    languages: tuple[str, str] = ("", "")
    may_run: str = ""
    while_loading: str = "Loading…"

    @property
    def policy(self) -> str:
        scripts = f"'self' {self.may_run}".strip()
        return (
            f"default-src 'none'; script-src {scripts}; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
            "base-uri 'none'; form-action 'none'"
        )

    def files(self) -> dict[str, str]:
        """All files but `script` and what it imports, by name."""
        folder = files(__package__)
        common = {name: (folder / name).read_text(encoding="utf-8") for name in COMMON}
        template = (folder / PAGE).read_text(encoding="utf-8")
        return {PAGE: rendered(template, page=self, most_drawn=MOST_DRAWN) + "\n"} | common
