"""Many trainings, and a table of them."""

import json
import os
from pathlib import Path

import click

from .shared import json_option, recipe_argument, working


@click.command()
@recipe_argument
@click.argument("values", nargs=-1, required=True, metavar="SECTION.KEY=A,B,C...")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder for the runs; if not given, runs/ and RECIPE's name with -sweep.",
)
@click.option("--show", is_flag=True, help="Print the table of what is there, and train nothing.")
@json_option
def sweep(recipe: Path, values: tuple[str, ...], output: Path | None, show: bool, as_json: bool) -> None:
    """
    Train RECIPE with every combination of the given values, and print a table of their scores.

    RECIPE is a YAML file, or the name of a recipe that `hf-vanilla recipes` lists.

    \b
    hf-vanilla sweep quickstart model.dropout=0.1,0.3 model.norm_first=false,true
    hf-vanilla sweep recipe.yaml training.learning_rate=1e-3,2e-3 training.seed=1,2,3
    hf-vanilla sweep recipe.yaml model.d_model=[64,128] training.max_steps=1000
    hf-vanilla sweep recipe.yaml data.train='{file: a.tsv, source: 0, target: 1},{file: b.tsv, source: 0, target: 1}'

    Each is an ordinary run of `hf-vanilla train` in a folder with its values as a name. The same command goes on where
    it was stopped, and trains nothing again that is finished. A training that diverges or is refused is said, and the
    others go on; the exit code is then 1. Values are YAML: quotes and brackets keep their commas, and a value that is
    a list itself stands in two pairs of brackets: training.metrics='[[bleu, chrf]]'.

    \b
    The table is Markdown on stdout, with 95 % confidence intervals by bootstrap; all else is on stderr. Trainings that
    differ only in training.seed also have a row together: the mean of each score, and its standard deviation (sd).

    \b
    How good a recipe is among its neighbours: one sweep for each key, with its own value and those around it.
      hf-vanilla sweep recipe.yaml --output runs/rate    training.learning_rate=1e-3,2e-3,4e-3
      hf-vanilla sweep recipe.yaml --output runs/dropout model.dropout=0.2,0.3,0.4

    What concerns only the search needs no training: hf-vanilla evaluate RUN generation.num_beams=8.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise click.UsageError("a sweep starts a process for each training by itself: start it without a launcher")
    with working():
        from hf_vanilla import sweep as sweeps

        found = sweeps.combinations(recipe, values, output or Path("runs") / f"{recipe.stem}-sweep")
        if show:
            for one in found:
                sweeps.look_at(one)
        else:
            sweeps.sweep(recipe, found)
    shown = json.dumps(sweeps.facts(found), indent=2, ensure_ascii=False) if as_json else sweeps.table(found)
    click.echo(shown)
    if not show and any(one.problem for one in found):
        raise SystemExit(1)
