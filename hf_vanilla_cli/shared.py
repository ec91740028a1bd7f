"""What commands have in common: arguments, options, the block in which they work, and how results are shown."""

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

run_argument = click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))


class NameOrPath(click.Path):
    """A recipe: a file, or the name of one that comes with this package, such as `quickstart`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from hf_vanilla.training.shipped import find

        try:
            return super().convert(find(value), param, ctx)
        except FileNotFoundError as error:
            self.fail(str(error), param, ctx)


recipe_argument = click.argument("recipe", type=NameOrPath(exists=True, dir_okay=False, path_type=Path))
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
    from hf_vanilla.inference.engine import EngineError
    from hf_vanilla.interop.errors import InteropError
    from hf_vanilla.manifest import ManifestError
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
        *(
            InvalidDataError,
            EngineError,
            InteropError,
            ManifestError,
            RecipeError,
            TrainingDivergedError,
            DamagedCheckpointError,
            RunInUseError,
            RanksError,
        ),
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
