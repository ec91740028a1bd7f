"""
Kill a training again and again, also while it saves, and start it again with the same command.

In the end it must have the weights and the log, bit for bit, of a training that was never killed. Prints what happened
as JSON. `make trial-kills` runs 60 kills; the tests a few.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

import hf_vanilla_cli as cli
from hf_vanilla.run_directory import checkpoints_of, step_of
from hf_vanilla.training.run import train  # noqa: F401 -- imported once here, not in every child

RECIPE = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
OVERRIDES = {
    "data.train.size": 300,
    "data.validation.size": 8,
    "data.test.size": 4,
    "tokenizer.dropout": 0.1,
    "model.d_model": 32,
    "model.d_ff": 64,
    "training.max_tokens": 400,
    "training.gradient_accumulation_steps": 2,
    "training.max_steps": 70,
    "training.warmup_steps": 5,
    "training.logging_steps": 7,
    "training.eval_steps": 30,
    "training.save_steps": 5,
    "training.save_total_limit": 2,
    "training.average_checkpoints": 2,
}
NOT_OF_THE_TRAINING = ("runtime", "per_second")


def command(run: Path, **overrides: object) -> list[str]:
    chosen = OVERRIDES | {key.replace("__", "."): value for key, value in overrides.items()}
    return ["train", str(RECIPE), "--output", str(run), *(f"{key}={value}" for key, value in chosen.items())]


def start(arguments: list[str], log: Path) -> int:
    """The command in a child that has everything imported already; returns its process id."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            with log.open("a") as opened:
                os.dup2(opened.fileno(), 1)
                os.dup2(opened.fileno(), 2)
            cli.main(arguments, standalone_mode=False)
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return child


def finish(arguments: list[str], log: Path) -> None:
    _, status = os.waitpid(start(arguments, log), 0)
    if status:
        raise SystemExit(f"the training failed: {log.read_text()[-3000:]}")


@dataclass
class Killer:
    """Kills a child at a random moment, or at a random moment of its next save."""

    run: Path
    random: random.Random
    duration: float
    kills: int = 0
    inside_saves: int = 0

    def kill(self, child: int, inside_save: bool) -> bool:
        """Whether the child was killed before it ended."""
        saves_to_wait_for = self.random.randrange(1, 4)
        moment = time.perf_counter() + self.random.uniform(0.05, self.duration)
        was_saving = False
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            is_saving = any(self.run.glob("unfinished/checkpoint-*"))
            saves_to_wait_for -= is_saving and not was_saving
            was_saving = is_saving
            if inside_save and is_saving and saves_to_wait_for <= 0:
                time.sleep(self.random.uniform(0, 0.03))
            if time.perf_counter() > moment if not inside_save else is_saving and saves_to_wait_for <= 0:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                self.kills += 1
                self.inside_saves += any(self.run.glob("unfinished/checkpoint-*"))
                return True
            time.sleep(0.0005)
        return False


def newest_step(run: Path) -> int:
    return max((step_of(checkpoint) for checkpoint in checkpoints_of(run)), default=0)


def what_was_learnt(run: Path) -> dict[str, object]:
    """All weights, and the log but for its times."""
    history = json.loads((run / "history.json").read_text())
    log = [
        {key: value for key, value in entry.items() if not key.endswith(NOT_OF_THE_TRAINING)}
        for entry in history
        if "train_runtime" not in entry
    ]
    weights = {
        f"{file.parent.name if file.parent != run else 'run'} {name}": weight.numpy().tobytes()
        for file in sorted(run.glob("**/model.safetensors"))
        for name, weight in load_file(file).items()
    }
    return {"log": log, **weights}


def trial(folder: Path, kills: int, inside_saves: int, seed: int) -> dict[str, int]:
    unbroken, broken, log = folder / "unbroken", folder / "broken", folder / "log"
    began = time.perf_counter()
    finish(command(unbroken), log)
    killer = Killer(broken, random.Random(seed), time.perf_counter() - began)  # noqa: S311
    rounds = most_lost = 0
    while killer.kills < kills or killer.inside_saves < inside_saves:
        if newest_step(broken) == OVERRIDES["training.max_steps"]:  # a whole training is behind it: compare, begin anew
            finish(command(broken), log)
            assert what_was_learnt(broken) == what_was_learnt(unbroken), f"see {broken}"
            rounds += 1
            broken.rename(folder / f"broken-{rounds}")
        before = newest_step(broken)
        text_before = len(log.read_text())
        killer.kill(start(command(broken), log), inside_save=killer.inside_saves < inside_saves)
        reached = [
            int(line.split()[1]) for line in log.read_text()[text_before:].splitlines() if line.startswith("step ")
        ]
        assert newest_step(broken) >= before, "a checkpoint was lost"
        most_lost = max(most_lost, max(reached, default=0) - newest_step(broken))
    finish(command(broken), log)
    assert what_was_learnt(broken) == what_was_learnt(unbroken), f"see {broken}"
    assert most_lost <= OVERRIDES["training.save_steps"], f"{most_lost} steps were lost"
    return {
        "kills": killer.kills,
        "inside a save": killer.inside_saves,
        "trainings compared": rounds + 1,
        "most logged steps lost": most_lost,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--inside-saves", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(json.dumps(trial(chosen.folder, chosen.kills, chosen.inside_saves, chosen.seed)) + "\n")
