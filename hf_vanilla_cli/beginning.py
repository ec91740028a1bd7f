"""What comes before the first training: the recipes there are, and a recipe for one's own text."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from .shared import json_option, working


@click.command()
@click.option("--path", "name", metavar="NAME", help="Print only where this file is, such as accelerate/ddp.")
@json_option
def recipes(name: str | None, as_json: bool) -> None:
    """List the recipes that come with this package, with what each needs and reaches."""
    with working():
        from hf_vanilla.training import shipped

        if name is not None:
            click.echo(shipped.named(name))
            return
        found = [shipped.describe(known) for known in shipped.names()]
        if as_json:
            click.echo(json.dumps([asdict(recipe) | {"path": str(recipe.path)} for recipe in found], indent=2))
            return
        for recipe in found:
            click.echo(f"{recipe.name}\n  {recipe.about}\n  Needs: {recipe.needs}\n  Reaches: {recipe.reaches}\n")
        click.echo("`hf-vanilla train NAME` trains a recipe, `hf-vanilla init --like NAME` copies one to edit.")
        click.echo(f"Sizes of the model, for model.preset: {', '.join(shipped.presets())}")
        click.echo(f"For `accelerate launch --config_file`, with --path: {', '.join(shipped.names('accelerate'))}")
