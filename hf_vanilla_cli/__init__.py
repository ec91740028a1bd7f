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
from .measuring import evaluate
from .scoring import score
from .training import average, check, train
from .translating import translate

COMMANDS = (init, recipes, check, train, average, translate, score, evaluate, export, benchmark, env)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hf_vanilla", prog_name="hf-vanilla")
def main() -> None:
    """The Transformer of "Attention Is All You Need" for Hugging Face."""


for command in COMMANDS:
    main.add_command(command)
