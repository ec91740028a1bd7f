"""
The command line: parse the arguments, call the package, print what it returns.

This package is outside of `hf_vanilla`, and imports it inside the commands only: importing `hf_vanilla` registers the
Auto classes, for which it needs PyTorch, and that takes seconds that `--help` should not take.
"""

import click

from .beginning import init, recipes
from .benchmarking import benchmark
from .environment import env
from .exporting import export
from .importing import import_
from .inspecting import inspect
from .measuring import evaluate
from .scoring import score
from .serving import serve
from .sharing import push
from .sweeping import sweep
from .training import average, check, train
from .translating import translate

COMMANDS = (
    *(init, recipes, check, train, sweep, average, translate, score, evaluate),
    *(inspect, push, export, import_, serve, benchmark, env),
)

LONGEST = 200  # characters of a sentence; click itself would cut it at the end of the line


class InOrder(click.Group):
    """Lists its commands in the order of work, each with a whole sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(LONGEST)) for name, each in self.commands.items()])


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hf_vanilla", prog_name="hf-vanilla")
def main() -> None:
    """The Transformer of "Attention Is All You Need" for Hugging Face."""


for command in COMMANDS:
    main.add_command(command)
