"""Sampling that does not depend on batches: every target is drawn with random numbers of its own."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

WARPERS: dict[str, tuple[Any, Callable[[Any], LogitsProcessor]]] = {
    "temperature": (1.0, TemperatureLogitsWarper),
    "top_h": (None, TopHLogitsWarper),
    "top_k": (50, TopKLogitsWarper),
    "top_p": (1.0, TopPLogitsWarper),
    "min_p": (None, MinPLogitsWarper),
    "typical_p": (1.0, TypicalLogitsWarper),
    "epsilon_cutoff": (0.0, EpsilonLogitsWarper),
    "eta_cutoff": (0.0, EtaLogitsWarper),
}
"""Keys of the generation config that shape what is drawn from, with transformers' defaults, in its order."""

NO_EFFECT = {
    "temperature": 1.0,
    "top_h": None,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
SMALLEST = torch.finfo(torch.float32).tiny


class SeededSampling(LogitsProcessor):
    """
    Makes the most probable next token of each row a random one, drawn from the row's probabilities.

    Noise with a Gumbel distribution is added to the logits: the largest sum is then at a token as often as the softmax
    says. Each row has a generator of its own, where `torch.multinomial` uses one for all rows of a batch.

    Args:
        settings: The settings of the call, by the names of the generation config.
        seeds: One for each row.
    """

    def __init__(self, settings: Callable[[str], Any], seeds: Sequence[int]):
        self.warpers = LogitsProcessorList()
        for name, (default, warper) in WARPERS.items():
            value = default if settings(name) is None else settings(name)
            if value != NO_EFFECT[name]:
                self.warpers.append(warper(value))
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = self.warpers(input_ids, scores)
        size = scores.shape[-1]
        waits = torch.stack([torch.empty(size).exponential_(generator=own) for own in self.generators])
        return scores - waits.clamp(min=SMALLEST).log().to(scores.device)


def seed_of(seed: int, number: int, sample: int) -> int:
    """For this sample of this line: far from those of others, however near their numbers are."""
    digest = hashlib.blake2b(f"{seed} {number} {sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
