"""What comes before the first training: a recipe for one's own text, and the recipes that there are."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from .shared import json_option, working

SPLIT_OPTIONS = ("--validation", "--test")


class SplitFiles(click.Command):
    """Lets `--validation` and `--test` be followed by two files, as in `--validation valid.en valid.de`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(repeated_options(args)))


def repeated_options(args: Sequence[str]) -> list[str]:
    """`--validation A B` is `--validation A --validation B`, up to the next option."""
    repeated: list[str] = []
    option = None
    for number, arg in enumerate(args):
        is_option = arg.startswith("-") and arg != "-"
        if option and not is_option and args[number - 1] != option:
            repeated.append(option)
        if is_option:
            option = arg if arg in SPLIT_OPTIONS else None
        repeated.append(arg)
    return repeated


@click.command(cls=SplitFiles)
@click.argument("source", required=False)
@click.argument("target", required=False)
@click.option("--validation", multiple=True, metavar="SOURCE TARGET", help="If not given, a part is held out.")
@click.option("--test", multiple=True, metavar="SOURCE TARGET", help="What to measure the trained model on.")
@click.option("--source-column", "source_columns", multiple=True, help="Of a table, by name or number from 0.")
@click.option("--target-column", help="Likewise.")
@click.option("--source-language", help="As in en; if not given, from names such as train.en.")
@click.option("--target-language", help="Likewise.")
@click.option("--name", help="The configuration of a dataset, such as de-en.")
@click.option("--like", metavar="NAME", help="Copy this recipe of ours (see `hf-vanilla recipes`) to edit it.")
@click.option("--output", type=click.Path(path_type=Path), help="The recipe.  [default: recipe.yaml, or NAME.yaml]")
def init(
    source: str | None,
    target: str | None,
    validation: tuple[str, ...],
    test: tuple[str, ...],
    source_columns: tuple[str, ...],
    target_column: str | None,
    source_language: str | None,
    target_language: str | None,
    name: str | None,
    like: str | None,
    output: Path | None,
) -> None:
    """
    Write a recipe that fits your text.

    Give two text files, SOURCE and TARGET, each line of one the translation of that line of the other; or one table
    (.tsv, .csv, .jsonl, .parquet); or a dataset, as an id on the Hub or a folder. Name them first, and then options:

    \b
        hf-vanilla init train.en train.de --validation valid.en valid.de
        hf-vanilla init pairs.csv --source-column english --target-column german
        hf-vanilla init wmt/wmt14 --name de-en
    """
    if (source is None) == (like is None):
        raise click.UsageError("give SOURCE and TARGET, a table or a dataset; or --like NAME")
    with working():
        from hf_vanilla.training import shipped
        from hf_vanilla.training.given import Given
        from hf_vanilla.training.own_text import copy_shipped, next_commands, write_recipe

        if source is None:
            file = copy_shipped(str(like), output)
        else:
            train = (source,) if target is None else (source, target)
            languages = {"source_language": source_language, "target_language": target_language}
            written = write_recipe(
                Given(train, validation, test, source_columns, target_column, name),
                output or Path("recipe.yaml"),
                {key: language for key, language in languages.items() if language},
                ["hf-vanilla", *sys.argv[1:]],
            )
            file = written.file
            for fact, value in written.report.facts.items():
                click.echo(f"{fact}: {value}", err=True)
            for finding in written.report.findings:
                click.echo(f"- {finding}", err=True)
    click.echo(f"{file} is written.", err=True)
    if like is None or like in shipped.names():
        click.echo("\n".join(["Look into it, and go on with", *next_commands(file)]), err=True)


@click.command()
@click.option("--path", "name", metavar="NAME", help="Print only where this file is, such as accelerate/ddp.")
@json_option
def recipes(name: str | None, as_json: bool) -> None:
    """List the recipes that come with this package, with what each needs and reaches."""
    with working():
        from hf_vanilla.training import shipped

        path = shipped.named(name) if name else None
        found = [shipped.describe(known) for known in shipped.names()]
    if path:
        click.echo(path)
    elif as_json:
        click.echo(json.dumps([asdict(recipe) | {"path": str(recipe.path)} for recipe in found], indent=2))
    else:
        for recipe in found:
            click.echo(f"{recipe.name}\n  {recipe.about}\n  Needs: {recipe.needs}\n  Reaches: {recipe.reaches}\n")
        click.echo("`hf-vanilla train NAME` trains a recipe, `hf-vanilla init --like NAME` copies one to edit.")
        click.echo(f"Sizes of the model, for model.preset: {', '.join(shipped.presets())}")
        click.echo(f"For `accelerate launch --config_file`, with --path: {', '.join(shipped.names('accelerate'))}")
