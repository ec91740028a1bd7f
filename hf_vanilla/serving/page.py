"""The page for people: one file with its own style and script, which sends text to this server and nowhere else."""

from importlib.resources import files

from markupsafe import Markup

from ..pages import hash_of, rendered
from .languages import Languages
from .limits import Limits

ALTERNATIVES = 4  # that the page shows beside the best


def page_of(languages: Languages, limits: Limits) -> tuple[str, str]:
    """The page, and its Content-Security-Policy."""
    template, style, script = (
        (files("hf_vanilla.serving") / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    policy = (
        f"default-src 'none'; style-src '{hash_of(style)}'; script-src '{hash_of(script)}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    html = rendered(
        template,
        style=Markup(style),  # noqa: S704 - our own
        script=Markup(script),  # noqa: S704 - our own
        languages=languages,
        limits=limits,
        alternatives=min(ALTERNATIVES, limits.max_alternatives),
    )
    return html, policy
