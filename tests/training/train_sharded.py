"""
scripts/train.py under FSDP2 on CPU processes, which accelerate itself would take for data parallelism without a word.

Says on stderr into how many parts the weights are split.
"""

import sys
from typing import Any

from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.tensor import DTensor

from hf_vanilla.training.trainer import VanillaTrainer
from hf_vanilla_cli import main

usual_init, usual_step = Accelerator.__init__, VanillaTrainer.training_step


def sharding_init(self: Accelerator, *arguments: Any, **options: Any) -> None:
    usual_init(self, *arguments, **options)
    plugin = FullyShardedDataParallelPlugin()  # from the environment, which accelerate's launcher has set
    self.state._shared_state |= {"distributed_type": DistributedType.FSDP, "fsdp_plugin": plugin}
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def watched_step(self: VanillaTrainer, model: Any, *arguments: Any) -> Any:
    if self.state.global_step == 0:
        parts = {p.numel() / p.to_local().numel() if isinstance(p, DTensor) else 1 for p in model.parameters()}
        sys.stderr.write(f"weights are split into {parts}\n")
    return usual_step(self, model, *arguments)


Accelerator.__init__ = sharding_init
VanillaTrainer.training_step = watched_step
main(["train", *sys.argv[1:]])
