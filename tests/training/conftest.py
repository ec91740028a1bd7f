"""What trainings did, for tests to look at."""

from typing import Any

import pytest
from torch import Tensor

from hf_vanilla.training.trainer import VanillaTrainer

Step = tuple[Any, ...]


@pytest.fixture
def steps_taken(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Every batch that is trained on, and its loss."""
    taken: list[Step] = []
    usual = VanillaTrainer.training_step

    def recorded(self: VanillaTrainer, model: Any, inputs: dict[str, Tensor], items: Any = None) -> Tensor:
        loss = usual(self, model, inputs, items)
        ids = tuple(tuple(map(tuple, inputs[name].tolist())) for name in ("input_ids", "labels"))
        taken.append((self.state.global_step, *ids, float(loss)))
        return loss

    monkeypatch.setattr(VanillaTrainer, "training_step", recorded)
    return taken
