"""
Two ranks that start in ways in which they cannot train together, or in which the first one takes long.

Each trial is the command `train` on two processes, forked from one that has imported everything. Prints for each trial
and rank the exit code, the seconds and the last lines that it said, as JSON.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from trial_kills import command, start

from hf_vanilla.training import preparation

TIMEOUT = 2  # of collective operations, in seconds
SHORT = {
    "training__ddp_timeout": TIMEOUT,
    "training__gradient_accumulation_steps": 1,
    "training__max_steps": 2,
    "training__save_steps": 2,
    "training__eval_strategy": "no",
    "training__metric_for_best_model": "loss",
    "training__average_checkpoints": 1,
    "data__train__size": 60,
}
Trial = Callable[[Path], tuple[list[str], list[str]]]
usual = preparation.train_tokenizer


def two_directories(folder: Path) -> tuple[list[str], list[str]]:
    return command(folder / "a", **SHORT), command(folder / "b", **SHORT)


def two_recipes(folder: Path) -> tuple[list[str], list[str]]:
    return command(folder, **SHORT), command(folder, **SHORT, training__learning_rate=0.5)


def somebody_elses_directory(folder: Path) -> tuple[list[str], list[str]]:
    folder.mkdir()
    (folder / "README.md").write_text("mine")
    return command(folder, **SHORT), command(folder, **SHORT)


def a_long_preparation(folder: Path) -> tuple[list[str], list[str]]:
    preparation.train_tokenizer = lambda *arguments: time.sleep(2 * TIMEOUT) or usual(*arguments)
    return command(folder, **SHORT), command(folder, **SHORT)


def a_death_during_preparation(folder: Path) -> tuple[list[str], list[str]]:
    preparation.train_tokenizer = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    return command(folder, **SHORT), command(folder, **SHORT)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


def outcome(trial: Trial, folder: Path) -> list[dict[str, object]]:
    """What becomes of each rank."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    began, logs, ranks = time.monotonic(), [], {}
    for rank, arguments in enumerate(trial(folder)):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        logs.append(folder.with_name(f"{folder.name}-{rank}.log"))
        ranks[start(arguments, logs[rank])] = rank
    found: list[dict[str, object]] = [{}, {}]
    while ranks:
        child, status = os.wait()
        rank = ranks.pop(child)
        said = logs[rank].read_text()[-3000:]
        code = os.waitstatus_to_exitcode(status)
        found[rank] = {"code": code, "seconds": time.monotonic() - began, "said": said}
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    trials = [two_directories, two_recipes, somebody_elses_directory, a_long_preparation, a_death_during_preparation]
    found = {}
    for trial in trials:
        found[trial.__name__] = outcome(trial, folder / trial.__name__)
        preparation.train_tokenizer = usual
    sys.stdout.write(json.dumps(found) + "\n")
