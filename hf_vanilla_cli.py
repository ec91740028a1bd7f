"""
The command line: parse the arguments, call the package, print what it returns.

This module is outside of the package, and imports it inside the commands only: importing `hf_vanilla` registers the
Auto classes, for which it needs PyTorch, and that takes seconds that `--help` should not take.
"""

import json
import os
import platform
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import click

REPORTED_PACKAGES = (
    *("hf_vanilla", "torch", "transformers", "accelerate"),
    *("datasets", "tokenizers", "safetensors", "huggingface_hub"),
)

run_argument = click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
recipe_argument = click.argument("recipe", type=click.Path(exists=True, dir_okay=False, path_type=Path))
overrides_argument = click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
output_option = click.option(
    "--output", type=click.Path(path_type=Path), help="The run directory; if not given, runs/ and RECIPE's name."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@contextmanager
def working() -> Iterator[None]:
    """
    The block in which a command works: errors that the user can fix are shown in one line, without a traceback, and
    threads and memory are set up for computing on a CPU.
    """
    from transformers.utils import logging

    from hf_vanilla.data.errors import InvalidDataError
    from hf_vanilla.memory import keep_freed_memory
    from hf_vanilla.threads import giving_way, limit_threads
    from hf_vanilla.training.checkpoints import DamagedCheckpointError
    from hf_vanilla.training.ranks import RanksError
    from hf_vanilla.training.recipe import RecipeError
    from hf_vanilla.training.saving import RunInUseError
    from hf_vanilla.training.stopping import TrainingStoppedError
    from hf_vanilla.training.trainer import TrainingDivergedError

    logging.disable_progress_bar()  # of loading and saving, which take a moment
    keep_freed_memory()
    limit_threads()
    try:
        with giving_way(warn):
            yield
    except (
        *(InvalidDataError, RecipeError, TrainingDivergedError, DamagedCheckpointError, RunInUseError, RanksError),
        OSError,
    ) as error:
        raise click.ClickException(str(error)) from None
    except TrainingStoppedError as stop:
        click.echo(str(stop), err=True)
        raise SystemExit(stop.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


def warn(line: str) -> None:
    """On stderr, and by the first process of a launcher only."""
    if os.environ.get("RANK", "0") == "0":
        click.echo(line, err=True)


def show(facts: Mapping[str, Any], as_json: bool) -> None:
    lines = (f"{name}: {fact:.2f}" if isinstance(fact, float) else f"{name}: {fact}" for name, fact in facts.items())
    click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(lines))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hf_vanilla", prog_name="hf-vanilla")
def main() -> None:
    """The Transformer of "Attention Is All You Need" for Hugging Face."""


@main.command()
@recipe_argument
@overrides_argument
@output_option
@json_option
def train(recipe: Path, overrides: tuple[str, ...], output: Path | None, as_json: bool) -> None:
    """Train what RECIPE says and measure it. The same command goes on with a run that was stopped."""
    with working():
        from hf_vanilla.training.recipe import load_recipe
        from hf_vanilla.workflow import train_and_measure

        chosen, run = load_recipe(recipe, overrides), output or Path("runs") / recipe.stem
        scores = train_and_measure(chosen, run)
    if scores:
        show(scores, as_json)
        click.echo(f"The model is in {run}.", err=True)


@main.command()
@recipe_argument
@overrides_argument
@output_option
@json_option
def check(recipe: Path, overrides: tuple[str, ...], output: Path | None, as_json: bool) -> None:
    """Look at RECIPE and its data before training: sizes, cost, and what is probably wrong."""
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


@main.command()
@run_argument
@click.option("--last", type=click.IntRange(1), help="How many of the last checkpoints.")
@click.option("--best", type=click.IntRange(1), help="How many of those with the best validation.")
def average(run: Path, last: int | None, best: int | None) -> None:
    """Give RUN the mean of the weights of several of its checkpoints."""
    if (last is None) == (best is None):
        raise click.UsageError("give either --last or --best")
    with working():
        from hf_vanilla import workflow

        chosen = workflow.average(run, last or best or 1, "last" if last else "best")
    names = ", ".join(path.name for path in chosen)
    click.echo(f"{run} is now the average of {names}; `hf-vanilla evaluate {run}` measures it", err=True)


@main.command()
@run_argument
@click.option("--input", "source", type=click.File("rb"), default="-", help="If not given, stdin.")
@click.option("--output", type=click.File("w", encoding="utf-8"), default="-", help="If not given, stdout.")
@click.option("--num-beams", type=click.IntRange(1), help="The width of the search, if not the run's own.")
def translate(run: Path, source: IO[bytes], output: IO[str], num_beams: int | None) -> None:
    """Translate line by line. Where sources have several columns, tabs separate them."""
    with working():
        from hf_vanilla.data.corpus import text_of, without_byte_order_mark
        from hf_vanilla.inference.translator import Translator

        # All lines are read before --output is opened: what cannot be read leaves an earlier output as it was.
        name, numbered = getattr(source, "name", "<stdin>"), enumerate(without_byte_order_mark(source), start=1)
        lines = [text_of(line, f"{name}:{number}").split("\t") for number, line in numbered]
        options = {} if num_beams is None else {"num_beams": num_beams}
        for translation in Translator.from_pretrained(run).translate(lines, **options):
            output.write(" ".join(translation.splitlines()) + "\n")


@main.command()
@run_argument
@click.option("--split", type=click.Choice(["test", "validation"]), default="test", show_default=True)
@json_option
def evaluate(run: Path, split: str, as_json: bool) -> None:
    """Measure RUN on a split of its recipe."""
    with working():
        from hf_vanilla.workflow import measure

        show(measure(run, split), as_json)


rounds_option = click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="How often to measure each, in turn."
)


@main.group()
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


@main.command()
@json_option
def env(as_json: bool) -> None:
    """Print what a bug report needs: versions, platform, devices."""
    import torch

    facts: dict[str, Any] = {"python": platform.python_version(), "platform": platform.platform()}
    facts |= {name: metadata.version(name) for name in REPORTED_PACKAGES}
    show(facts | {"threads": torch.get_num_threads(), "cuda devices": torch.cuda.device_count()}, as_json)
