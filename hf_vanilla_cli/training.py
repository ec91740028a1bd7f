"""Before, during and after training."""

from pathlib import Path

import click

from .shared import json_option, output_option, overrides_argument, recipe_argument, run_argument, show, working


@click.command()
@recipe_argument
@overrides_argument
@output_option
@json_option
def train(recipe: Path, overrides: tuple[str, ...], output: Path | None, as_json: bool) -> None:
    """
    Train what RECIPE says and measure it. The same command goes on with a run that was stopped.

    RECIPE is a YAML file, or the name of a recipe that `hf-vanilla recipes` lists.

    \b
    hf-vanilla train quickstart
    hf-vanilla train recipe.yaml model.dropout=0.2 --output runs/dropout
    """
    with working():
        from hf_vanilla.training.recipe import load_recipe
        from hf_vanilla.workflow import train_and_measure

        chosen, run = load_recipe(recipe, overrides), output or Path("runs") / recipe.stem
        scores = train_and_measure(chosen, run)
    if scores:
        show(scores, as_json)
        click.echo(f"The model is in {run}.", err=True)


@click.command()
@recipe_argument
@overrides_argument
@output_option
@json_option
def check(recipe: Path, overrides: tuple[str, ...], output: Path | None, as_json: bool) -> None:
    """
    Look at RECIPE and its data before training: sizes, cost, and what is probably wrong.

    RECIPE is a YAML file, or the name of a recipe that `hf-vanilla recipes` lists.

    The exit code is 1 if there is something to change, as it is for errors.
    """
    with working():
        from hf_vanilla.training.check import check as checked
        from hf_vanilla.training.recipe import load_recipe
        from hf_vanilla.workflow import check_scores

        chosen = load_recipe(recipe, overrides)
        check_scores(chosen)
        report = checked(chosen, output or Path("runs") / recipe.stem)
    findings = [str(finding) for finding in report.findings]
    if as_json:
        show(report.facts | {"findings": findings}, as_json)
    else:
        show(report.facts, as_json)
        click.echo(
            "\n".join(
                ["", "To change:", *(f"- {finding}" for finding in findings)]
                if findings
                else ["", "Nothing to change."]
            )
        )
    if findings:
        raise SystemExit(1)


@click.command()
@run_argument
@click.option("--last", type=click.IntRange(1), help="How many of the last checkpoints.")
@click.option("--best", type=click.IntRange(1), help="How many of those with the best validation.")
def average(run: Path, last: int | None, best: int | None) -> None:
    """
    Replace the weights of RUN by the mean of several of its checkpoints.

    Exactly one of --last and --best says which. The weights that RUN had are not kept; its checkpoints are.
    """
    if (last is None) == (best is None):
        raise click.UsageError("give either --last or --best")
    with working():
        from hf_vanilla import workflow

        chosen = workflow.average(run, last or best or 1, "last" if last else "best")
    names = ", ".join(path.name for path in chosen)
    click.echo(f"{run} is now the average of {names}; `hf-vanilla evaluate {run}` measures it", err=True)
