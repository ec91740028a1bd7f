"""The same training on one process, on two, on two machines and sharded."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import warm
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from safetensors.torch import load_file
from trial_kills import command

from hf_vanilla.run_directory import checkpoints_of
from hf_vanilla.training.checkpoints import verify

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs" / "accelerate").glob("*.yaml"))
SCRIPT = str(ROOT / "scripts" / "train.py")
ACCELERATE = (sys.executable, "-m", "accelerate.commands.launch")
COMPARABLE = {"model__dropout": 0, "training__bf16": False, "training__max_steps": 30, "training__save_steps": 15}


def training(run: Path, script: str = SCRIPT, **overrides: object) -> list[str]:
    return [script, *command(run, **COMPARABLE | overrides)[1:]]


def script_here(name: str) -> str:
    return str(Path(__file__).with_name(name))


def start(arguments: Sequence[str]) -> warm.Process:
    return warm.Process(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(*launchers: warm.Process) -> str:
    try:
        said = "".join(launcher.communicate(timeout=240)[0] for launcher in launchers)
    finally:
        for launcher in launchers:
            launcher.terminate()
    assert [launcher.returncode for launcher in launchers] == [0] * len(launchers), said[-4000:]
    return said


def on(config: str, *options: str) -> list[str]:
    port = ["--main_process_port", str(free_port())]
    return [*ACCELERATE, "--config_file", str(ROOT / "configs" / "accelerate" / config), *port, *options]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


def curve(run: Path) -> tuple[list[float], list[dict[str, float]]]:
    """The losses in training, and all that was found in validation."""
    history = json.loads((run / "history.json").read_text())
    found = [{key: entry[key] for key in entry if key.startswith("eval_") and "second" not in key} for entry in history]
    for entry in found:
        entry.pop("eval_runtime", None)
    return [entry["loss"] for entry in history if "loss" in entry], [entry for entry in found if entry]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process that accumulates the two batches that two processes would have."""
    run = tmp_path_factory.mktemp("alone") / "run"
    finish(start([sys.executable, *training(run)]))
    return run


def assert_same_training(found: Path, expected: Path) -> None:
    ranks = {path.name for path in (found / "checkpoint-30").glob("rng_state*")}
    assert ranks == {"rng_state_0.pth", "rng_state_1.pth"}  # accelerate starts fewer processes if it thinks it must
    (losses, validations), (expected_losses, expected_validations) = curve(found), curve(expected)
    assert losses == pytest.approx(expected_losses, abs=1e-4)
    for entry, other in zip(validations, expected_validations, strict=True):
        assert entry == pytest.approx(other, abs=1e-3)
    assert_same_weights(found, expected, 1e-4)


def assert_same_weights(found: Path, expected: Path, tolerance: float) -> None:
    weights = load_file(expected / "checkpoint-30" / "model.safetensors")
    for name, weight in load_file(found / "checkpoint-30" / "model.safetensors").items():
        if name.endswith("k_proj.bias"):
            continue  # changes nothing: it adds the same to all scores of a query, and all its gradient is rounding
        torch.testing.assert_close(weight, weights[name], rtol=0, atol=tolerance, msg=name)


ONE_EACH = {"training__gradient_accumulation_steps": 1}


def test_two_processes_take_the_steps_of_one(alone: Path, tmp_path: Path) -> None:
    finish(start([*on("cpu.yaml"), *training(tmp_path / "run", **ONE_EACH)]))
    assert_same_training(tmp_path / "run", alone)


def test_two_machines_take_the_steps_of_one(alone: Path, tmp_path: Path) -> None:
    launcher = on("two_machines.yaml", "--main_process_ip", "127.0.0.1")
    finish(
        *(start([*launcher, "--machine_rank", str(rank), *training(tmp_path / "run", **ONE_EACH)]) for rank in (0, 1))
    )
    assert_same_training(tmp_path / "run", alone)


CALLED_HEAD = """
import sys
from hf_vanilla.models import modeling_vanilla
from hf_vanilla_cli import main
modeling_vanilla.is_plain_linear = lambda head: False
main(["train", *sys.argv[1:]])
"""


def test_a_sharded_model_takes_the_steps_of_one_and_goes_on(tmp_path: Path) -> None:
    """FSDP2 puts hooks on the output projection, which is then called: so it is in the process to compare with."""
    run, alone = tmp_path / "run", tmp_path / "alone"
    finish(start([sys.executable, "-c", CALLED_HEAD, *training(alone)[1:]]))
    launcher = [*on("fsdp2.yaml"), *training(run, script_here("train_sharded.py"), **ONE_EACH)]
    assert finish(start(launcher)).count("weights are split into {2.0}") == 2
    assert_same_training(run, alone)
    for folder, expected in ((run, alone), (run / "checkpoint-30", alone / "checkpoint-30")):
        assert {path.name for path in folder.glob("*.py")} == {path.name for path in expected.glob("*.py")}
        assert json.loads((folder / "config.json").read_text()) == json.loads((expected / "config.json").read_text())
        assert load_file(folder / "model.safetensors").keys() == load_file(expected / "model.safetensors").keys()
    (run / "checkpoint-30").rename(tmp_path / "whole")
    finish(start(launcher))
    assert_same_training(run, alone)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_file_for_accelerate_is_one(file: Path) -> None:
    assert load_config_from_file(str(file)).num_processes == 2
    _validate_launch_command(launch_command_parser().parse_args(["--config_file", str(file), SCRIPT]))


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--max-restarts=5")
TORCHRUN += ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
WATCHED = script_here("train_watched.py")
WITH_DROPOUT = ONE_EACH | {"training__save_steps": 5, "model__dropout": 0.3}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes that draw random numbers, each its own."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    finish(start([*on("cpu.yaml"), *training(run, **WITH_DROPOUT)]))
    return run


def send(number: signal.Signals, rank: int, moment: str, run: Path) -> int:
    """Send a signal to a rank of train_watched.py as soon as the run has this file; returns the rank's process id."""
    wait_for(moment, run)
    files = [run.with_name(f"rank-{rank}") for rank in (0, 1)]
    process = int(files[rank].read_text())
    for file in files:
        file.unlink()  # ranks that are started again leave new ones
    os.kill(process, number)
    return process


def wait_for(what: str, run: Path) -> None:
    deadline = time.monotonic() + 120
    while not (any(run.glob(what)) and run.with_name("rank-0").exists() and run.with_name("rank-1").exists()):
        assert time.monotonic() < deadline, f"no {what} in {run}"
        time.sleep(0.002)


LAUNCHER_FAILED = "ProcessLookupError"
"""How PyTorch's launcher (2.13) ends if a rank ends by itself just when the launcher is to end it. Then the same
command goes on, as after any other end."""


@pytest.mark.parametrize(
    ("launcher", "failures"),
    [
        (
            TORCHRUN,
            [
                (signal.SIGKILL, 1, "checkpoint-5"),
                (signal.SIGKILL, 0, "unfinished/checkpoint-15"),
                (signal.SIGSTOP, 1, "checkpoint-20"),
            ],
        ),
        (on("cpu.yaml", "--rdzv_backend=c10d", "--max_restarts=3"), [(signal.SIGKILL, 1, "checkpoint-10")]),
    ],
    ids=["torchrun: a rank is killed, the first one is while it saves, a rank hangs", "accelerate: a rank is killed"],
)
def test_ranks_that_fail_do_not_keep_the_training_from_its_end(
    unbroken: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launcher: Sequence[str],
    failures: Sequence[tuple[signal.Signals, int, str]],
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # else new ranks find addresses of the old ones
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "2")  # how long a rank that hangs may take to end
    run = tmp_path / "run"
    launch = [*launcher, *training(run, WATCHED, **WITH_DROPOUT | {"training__ddp_timeout": 10})]
    started = start(launch)
    failing = [send(number, rank, moment, run) for number, rank, moment in failures]
    said, _ = started.communicate(timeout=240)
    if started.returncode and LAUNCHER_FAILED in said:
        said = finish(start(launch))
    else:
        assert started.returncode == 0, said[-4000:]
    ends = said.count("2 ranks, ")  # of both ranks; twice, if a busy machine let the signal come after the training
    assert ends in (2, 4)
    assert said.count("2 ranks, 1 sets of weights") == ends
    # New ranks were started after the last failure, too. Which of the old ones the launcher blames is a matter of luck.
    assert all(int(run.with_name(f"rank-{rank}").read_text()) not in failing for rank in (0, 1))
    for checkpoint in checkpoints_of(run):
        verify(checkpoint)
    assert curve(run) == curve(unbroken)
    assert_same_weights(run, unbroken, 1e-6)


def test_without_restarts_the_same_command_goes_on(unbroken: Path, tmp_path: Path) -> None:
    broken = tmp_path / "run"
    killed = start([*on("cpu.yaml"), *training(broken, WATCHED, **WITH_DROPOUT)])
    send(signal.SIGKILL, 0, "checkpoint-10", broken)  # in mid-epoch
    killed.communicate(timeout=240)
    assert killed.returncode != 0
    finish(start([*on("cpu.yaml"), *training(broken, **WITH_DROPOUT)]))
    assert curve(broken) == curve(unbroken)
    assert_same_weights(broken, unbroken, 1e-6)
