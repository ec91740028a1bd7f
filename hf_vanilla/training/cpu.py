"""What makes a training step fast on a CPU."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from ..memory import keep_freed_memory
from ..models.kernels_vanilla import MAX_PRODUCT_KEYS, pad_to_min_keys
from ..models.modeling_vanilla import scaled_dot_product_attention

ATTENTION_BY_LENGTH = "attention_by_length"
HOW_FAST_ON_CPU = (
    f"freed memory is kept, attention over up to {MAX_PRODUCT_KEYS} keys is matrix products, dropout draws 16 bits"
)


def make_fast_on_cpu(model: PreTrainedModel) -> None:
    """
    Choose what computes the same faster: plain matrix products for attention over sentences, quicker random numbers for
    dropout, and memory that is kept.
    """
    keep_freed_memory()
    model.set_attn_implementation(ATTENTION_BY_LENGTH)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, QuickDropout(child.p).train(child.training))


def attention_by_length(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """
    Plain matrix products for sentences, PyTorch's fused attention for long texts.

    The backward pass of the latter is slow on CPUs, but it does not keep a weight for each query and key.
    """
    length = key.shape[2]
    if length > MAX_PRODUCT_KEYS:
        return sdpa_attention_forward(module, query, key, value, attention_mask, *args, **kwargs)
    if not torch.compiler.is_compiling():  # which would make another graph for these
        key, value, attention_mask = pad_to_min_keys(key, value, attention_mask)
    heads, weights = scaled_dot_product_attention(module, query, key, value, attention_mask, *args, **kwargs)
    return heads, weights[..., :length]


AttentionInterface.register(ATTENTION_BY_LENGTH, attention_by_length)
AttentionMaskInterface.register(ATTENTION_BY_LENGTH, eager_mask)


class QuickDropout(nn.Dropout):
    """
    Dropout whose random bits cost little.

    PyTorch draws one float per element, on one thread: a fifth of a training step. Here an element takes 16 bits of a
    faster generator, which is seeded from PyTorch's, so that the same seed gives the same masks.
    """

    does_nothing_in_evaluation = True  # so that the search in `generate()` may leave it out

    def forward(self, states: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return states
        dropped: Tensor = _Masked.apply(states, random_mask(states.shape, self.p), 1 / (1 - self.p))
        return dropped


@torch.library.custom_op("hf_vanilla::mask_of_seed", mutates_args=())  # to compilers, one operation
def mask_of_seed(seed: Tensor, shape: Sequence[int], rate: float) -> Tensor:
    """Where to keep: False with probability `rate`, which is rounded to 1 / 65536."""
    number = math.prod(shape)
    bits = np.random.Generator(np.random.SFC64(int(seed)))
    draws = bits.integers(0, 2**64, size=-(-number // 4), dtype=np.uint64)
    return torch.from_numpy(draws.view(np.uint16)[:number] >= round(rate * 65536)).view(shape)


mask_of_seed.register_fake(lambda seed, shape, rate: torch.empty(shape, dtype=torch.bool))


def random_mask(shape: Sequence[int], rate: float) -> Tensor:
    return mask_of_seed(torch.randint(2**63 - 1, ()), shape, rate)


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
