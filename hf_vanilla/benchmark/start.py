"""How long importing the package and showing the help take."""

import subprocess
import sys
import time
from functools import partial

from .rounds import Figures, Row, measured_rows

PROGRAMS = {
    "import hf_vanilla": ["-c", "import hf_vanilla"],
    "import torch and a model of transformers": ["-c", "import torch; from transformers import MarianMTModel"],
    "import transformers": ["-c", "import transformers"],
    "hf-vanilla --help": ["-c", "from hf_vanilla_cli import main; main(['--help'])"],
}


def compare_start(rounds: int) -> list[Row]:
    return measured_rows("start", {name: partial(seconds_of, program) for name, program in PROGRAMS.items()}, rounds)


def seconds_of(arguments: list[str]) -> Figures:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)  # noqa: S603 -- our own
    return {"seconds": time.perf_counter() - started}
