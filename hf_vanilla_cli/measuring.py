"""How good translations are."""

from pathlib import Path

import click

from .shared import json_option, run_argument, show, working


@click.command()
@run_argument
@click.option("--split", type=click.Choice(["test", "validation"]), default="test", show_default=True)
@json_option
def evaluate(run: Path, split: str, as_json: bool) -> None:
    """Measure RUN on a split of its recipe."""
    with working():
        from hf_vanilla.workflow import measure

        show(measure(run, split), as_json)
