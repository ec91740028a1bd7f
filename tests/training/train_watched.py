"""
scripts/train.py, which leaves the process id of each rank beside the run, and in the end also says on stderr how many
different weights the ranks have.
"""

import hashlib
import os
import sys
from typing import Any

import torch.distributed as dist

from hf_vanilla.training.trainer import VanillaTrainer
from hf_vanilla_cli import main

usual_train = VanillaTrainer.train


def watched_train(self: VanillaTrainer, *arguments: Any, **options: Any) -> Any:
    self.run.with_name(f"rank-{dist.get_rank()}").write_text(str(os.getpid()))
    outcome = usual_train(self, *arguments, **options)
    weights = b"".join(weight.detach().numpy().tobytes() for weight in self.model.parameters())
    sums = [""] * dist.get_world_size()
    dist.all_gather_object(sums, hashlib.sha256(weights).hexdigest())
    sys.stderr.write(f"{len(sums)} ranks, {len(set(sums))} sets of weights\n")
    return outcome


VanillaTrainer.train = watched_train
main(["train", *sys.argv[1:]])
