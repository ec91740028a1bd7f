"""How fast this package and its peers are."""

import json
from pathlib import Path
from typing import Any

import click

from .shared import json_option, overrides_argument, recipe_argument, run_argument, working

rounds_option = click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="How often to measure each, in turn."
)


@click.group()
def benchmark() -> None:
    """Measure this package and others that do the same work, as ratios."""


@benchmark.command("training")
@recipe_argument
@overrides_argument
@click.option("--steps", type=click.IntRange(5), default=60, show_default=True, help="How many to measure.")
@rounds_option
@json_option
def benchmark_training(recipe: Path, overrides: tuple[str, ...], steps: int, rounds: int, as_json: bool) -> None:
    """Train RECIPE for some steps, with this package, and with Trainer and a model of transformers."""
    with working():
        from hf_vanilla.benchmark.training import compare_training

        show_rows(compare_training(recipe, overrides, steps, rounds), as_json)


@benchmark.command("beside")
@recipe_argument
@overrides_argument
@click.option("--steps", type=click.IntRange(80), default=600, show_default=True, help="How many to measure.")
@rounds_option
@json_option
def benchmark_beside(recipe: Path, overrides: tuple[str, ...], steps: int, rounds: int, as_json: bool) -> None:
    """Train RECIPE twice at once on the same cores, and once alone."""
    with working():
        from hf_vanilla.benchmark.beside import compare_beside

        show_rows(compare_beside(recipe, overrides, steps, rounds), as_json)


@benchmark.command("generation")
@run_argument
@click.option("--sentences", type=click.IntRange(1), default=1000, show_default=True, help="How many of the test set.")
@rounds_option
@json_option
def benchmark_generation(run: Path, sentences: int, rounds: int, as_json: bool) -> None:
    """Translate the test set of RUN with this package, and with transformers and CTranslate2 and the same weights."""
    with working():
        from hf_vanilla.benchmark.generation import compare_generation

        show_rows(compare_generation(run, sentences, rounds), as_json)


@benchmark.command("engines")
@run_argument
@click.option("--sentences", type=click.IntRange(1), default=1000, show_default=True, help="How many of the test set.")
@click.option(
    "--engine",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder of the npm package onnxruntime-web, for the page in node; if not given, npm downloads it.",
)
@rounds_option
@json_option
def benchmark_engines(run: Path, sentences: int, engine: Path | None, rounds: int, as_json: bool) -> None:
    """
    Translate the test set of RUN with all engines: ours, CTranslate2, onnxruntime, and the page in node.

    All have one thread, and the beams and limits of RUN. What is not installed is said, and left out.
    """
    with working():
        from hf_vanilla.benchmark.engines import compare_engines, table

        rows = compare_engines(run, sentences, rounds, engine)
        click.echo(json.dumps(rows, indent=2) if as_json else table(rows))


@benchmark.command("lines")
@run_argument
@click.option("--lines", type=click.IntRange(1), default=100_000, show_default=True, help="The test set, repeated.")
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="float32", show_default=True)
@rounds_option
@json_option
def benchmark_lines(run: Path, lines: int, dtype: str, rounds: int, as_json: bool) -> None:
    """Translate lines with RUN from bytes to bytes, and call generate() on the same batches."""
    with working():
        from hf_vanilla.benchmark.lines import compare_lines

        show_rows(compare_lines(run, lines, rounds, dtype), as_json)


@benchmark.command("start")
@rounds_option
@json_option
def benchmark_start(rounds: int, as_json: bool) -> None:
    """Measure how long importing this package and showing its help take."""
    from hf_vanilla.benchmark.start import compare_start

    show_rows(compare_start(rounds), as_json)


@benchmark.command("growth")
@click.option(
    "--largest-corpus",
    type=click.IntRange(10_000),
    default=1_000_000,
    show_default=True,
    help="In pairs, of 10^4 to 10^7.",
)
@rounds_option
@json_option
def benchmark_growth(largest_corpus: int, rounds: int, as_json: bool) -> None:
    """Measure how time and memory grow with width, length, threads, beams and pairs."""
    with working():
        from hf_vanilla.benchmark.growth import compare_growth

        show_rows(compare_growth(largest_corpus, rounds), as_json)


def show_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    from hf_vanilla.benchmark.rounds import table

    click.echo(json.dumps(rows, indent=2) if as_json else table(rows))
