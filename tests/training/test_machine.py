"""What a training runs on: said at its start, refused where it cannot be, and kept when it goes on."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from hf_vanilla.training import machine
from hf_vanilla.training.machine import ThreadsOfTheRun, UnsupportedSystemError, refuse_unsupported_systems
from hf_vanilla.training.recipe import load_recipe
from hf_vanilla.training.run import train

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
SMALL = {
    "data.train.size": 200,
    "data.validation.size": 4,
    "tokenizer.kind": "character",
    "model.d_model": 32,
    "model.d_ff": 64,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "training.max_tokens": 2000,
    "training.max_steps": 4,
    "training.save_steps": 2,
    "training.eval_strategy": "no",
    "training.metric_for_best_model": "loss",
    "training.average_checkpoints": 1,
}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(machine, "say", lines.append)
    return lines


def test_a_run_that_goes_on_in_another_shell_uses_as_many_threads_and_has_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    recipe = load_recipe(QUICKSTART, [f"{key}={value}" for key, value in SMALL.items()])

    def weights(run: Path) -> dict[str, torch.Tensor]:
        train(recipe, run, lambda *_: [], lambda *_: {})
        return load_file(run / "model.safetensors")

    torch.set_num_threads(2)
    expected = weights(tmp_path / "unbroken")
    for folder in ("again", "otherwise"):
        shutil.copytree(tmp_path / "unbroken", tmp_path / folder)
        shutil.rmtree(tmp_path / folder / "checkpoint-4")
    torch.set_num_threads(1)
    found = weights(tmp_path / "again")
    assert torch.get_num_threads() == 2
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert "training on the CPU, 2 threads, " in capsys.readouterr().err.rpartition("read into")[2]

    torch.set_num_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = weights(tmp_path / "otherwise")
    assert torch.get_num_threads() == 1
    assert "this run used 2 threads and goes on with 1, as OMP_NUM_THREADS says" in capsys.readouterr().err
    assert not all(torch.equal(found[name], weight) for name, weight in expected.items())


def on(device: str, **changes: object) -> SimpleNamespace:
    return SimpleNamespace(**{"device": torch.device(device), "world_size": 1, "bf16": False, "fp16": False} | changes)


def test_more_threads_than_cores_are_used_for_exactness_which_is_said(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    callback = ThreadsOfTheRun(**ThreadsOfTheRun(3).state()["args"])
    callback.on_train_begin(on("cpu"), None, None)
    assert torch.get_num_threads() == 3
    assert said[0].startswith("this run goes on with the 3 threads that it began with, on 2 cores: OMP_NUM_THREADS=2")


def test_another_number_of_processes_is_said_once(said: list[str]) -> None:
    begun = ThreadsOfTheRun(1)
    begun.on_train_begin(on("cuda:1", world_size=2), None, None)
    callback = ThreadsOfTheRun(**begun.state()["args"])
    callback.on_train_begin(on("cuda:1", world_size=1), None, None)
    assert [line for line in said if "this run was trained by 2 processes and goes on with 1" in line] == said[1:2]
    ThreadsOfTheRun(**callback.state()["args"]).on_train_begin(on("cuda:1", world_size=1), None, None)
    assert len(said) == 4


def test_on_a_gpu_the_number_of_threads_is_the_machines(said: list[str]) -> None:
    ThreadsOfTheRun(3).on_train_begin(on("cuda:1", bf16=True), None, None)
    assert torch.get_num_threads() == 1
    assert said == ["training on cuda:1, products in bfloat16, weights in float32"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({}, "training on the CPU, 1 thread, float32"),
        ({"bf16": True}, "training on the CPU, 1 thread, products in bfloat16, weights in float32"),
        ({"world_size": 2}, "training on the CPU, 2 processes, 1 thread each, float32"),
    ],
)
def test_device_threads_and_precision_are_said(arguments: dict[str, object], line: str) -> None:
    assert machine.what_it_runs_on(on("cpu", **arguments)) == line


def test_a_system_without_posix_locks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_unsupported_systems()
    monkeypatch.setitem(sys.modules, "fcntl", None)  # importing it fails
    with pytest.raises(UnsupportedSystemError, match="training needs Linux or macOS"):
        refuse_unsupported_systems()
