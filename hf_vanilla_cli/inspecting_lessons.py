"""`inspect --lessons`: what the paper says of its parts, tried out."""

import json
from pathlib import Path
from typing import Any

import click

from .shared import warn


def lessons_mode(run: Path | None, source: str | None, target: str | None, *, lessons: Path, as_json: bool) -> None:
    """A folder with a page, and with the figure and the numbers of each lesson."""
    from hf_vanilla.inspection.lessons import write_lessons

    if run is not None:
        raise click.UsageError("--lessons needs no RUN: hf-vanilla inspect --lessons DIR")
    found: dict[str, Any] = write_lessons(lessons, warn)
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        click.echo(lessons / "index.html")
