"""What makes a training step fast on a CPU."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..memory import keep_freed_memory


def make_fast_on_cpu(model: PreTrainedModel) -> None:
    """
    Choose what computes the same faster: plain matrix products for attention, quicker random numbers for dropout, and
    memory that is kept.

    The backward pass of PyTorch's fused attention is slow on CPUs for sentences.
    """
    keep_freed_memory()
    model.set_attn_implementation("eager")
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, QuickDropout(child.p).train(child.training))


class QuickDropout(nn.Dropout):
    """
    Dropout whose random bits cost little.

    PyTorch draws one float per element, on one thread: a fifth of a training step. Here an element takes 16 bits of a
    faster generator, which is seeded from PyTorch's, so that the same seed gives the same masks.
    """

    def forward(self, states: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return states
        dropped: Tensor = _Masked.apply(states, random_mask(states.shape, self.p), 1 / (1 - self.p))
        return dropped


def random_mask(shape: torch.Size, rate: float) -> Tensor:
    """Where to keep: False with probability `rate`, which is rounded to 1 / 65536."""
    bits = np.random.Generator(np.random.SFC64(int(torch.randint(2**63 - 1, ()))))
    draws = bits.integers(0, 2**64, size=-(-shape.numel() // 4), dtype=np.uint64)
    return torch.from_numpy(draws.view(np.uint16)[: shape.numel()] >= round(rate * 65536)).view(shape)


class _Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return (states * mask).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (mask,) = ctx.saved_tensors
        return (gradients[0] * mask).mul_(ctx.scale), None, None
