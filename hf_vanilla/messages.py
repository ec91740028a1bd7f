"""What the command line tells the user on stderr."""

import sys

from accelerate import PartialState


def say(line: str) -> None:
    """Print a line, from the main process only."""
    if PartialState().is_main_process:
        print(line, file=sys.stderr, flush=True)  # noqa: T201
