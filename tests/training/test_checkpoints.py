"""Averages are means, the best are the best, and nothing is lost while weights are replaced."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_vanilla.run_directory import checkpoints_of
from hf_vanilla.training.checkpoints import (
    DamagedCheckpointError,
    average_checkpoints,
    average_weights,
    best_checkpoints,
    save_weights,
)
from hf_vanilla.training.saving import seal

Write = Callable[[int], dict[str, torch.Tensor]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(step)`: a checkpoint of that step with random weights."""

    def checkpoint(step: int) -> dict[str, torch.Tensor]:
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        weights = {"a": torch.randn(3, 2), "b": torch.randn(4).bfloat16()}
        save_file(weights, folder / "model.safetensors")
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": []}))
        seal(folder, step)
        return weights

    return checkpoint


def test_the_average_is_the_mean_of_every_weight(write: Write, tmp_path: Path) -> None:
    written = [write(step) for step in (5, 10, 100)]
    found = average_weights(checkpoints_of(tmp_path))
    for name in ("a", "b"):
        assert found[name].dtype == written[0][name].dtype
        expected = torch.stack([weights[name].double() for weights in written]).mean(0)
        torch.testing.assert_close(found[name], expected.to(found[name].dtype))


def test_checkpoints_are_in_the_order_of_their_steps(write: Write, tmp_path: Path) -> None:
    for step in (100, 5, 20):
        write(step)
    for name in ("checkpoint-new", "damaged-checkpoint-7", "unfinished"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints_of(tmp_path)] == ["checkpoint-5", "checkpoint-20", "checkpoint-100"]


@pytest.mark.parametrize(("greater_is_better", "expected"), [(True, [20, 30]), (False, [10, 30])])
def test_the_best_are_those_of_the_best_validation(
    write: Write, tmp_path: Path, greater_is_better: bool, expected: list[int]
) -> None:
    for step in (10, 20, 30, 40):
        write(step)
    history = [{"step": step, "eval_bleu": bleu} for step, bleu in ((10, 1.0), (20, 9.0), (30, 5.0))]
    (tmp_path / "checkpoint-40" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    found = best_checkpoints(tmp_path, 2, "bleu", greater_is_better)
    assert [path.name for path in found] == [f"checkpoint-{step}" for step in expected]


def test_checkpoints_without_a_validation_cannot_be_the_best(write: Write, tmp_path: Path) -> None:
    write(15)
    (tmp_path / "checkpoint-15" / "trainer_state.json").write_text(json.dumps({"log_history": []}))
    with pytest.raises(FileNotFoundError, match="was validated by bleu at its step"):
        average_checkpoints(tmp_path, 2, "best", "bleu", True)


def test_what_cannot_be_averaged_is_refused(write: Write, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint to average"):
        average_weights([])
    write(1)
    (tmp_path / "checkpoint-2").mkdir()
    save_file({"other": torch.ones(1)}, tmp_path / "checkpoint-2" / "model.safetensors")
    with pytest.raises(DamagedCheckpointError, match=r"checkpoint-2/manifest.json is missing"):
        average_weights([tmp_path / "checkpoint-2"])
    seal(tmp_path / "checkpoint-2", 2)
    with pytest.raises(ValueError, match=r"checkpoint-2 has other weights than .*checkpoint-1"):
        average_weights([tmp_path / "checkpoint-1", tmp_path / "checkpoint-2"])


def test_weights_that_cannot_be_written_leave_the_old_ones(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write(1)

    def full_disk(_weights: object, file: Path, **_: object) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hf_vanilla.training.checkpoints.save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_weights({"a": torch.zeros(3, 2)}, tmp_path / "checkpoint-1")
    assert torch.equal(load_file(tmp_path / "checkpoint-1" / "model.safetensors")["a"], old["a"])
