"""
What computes the same faster on CPUs.

Products of states and weights where no gradients are wanted: with float32, PyTorch by itself takes MKL, which on
processors that are not Intel's reaches half of their speed. oneDNN reaches all of it, but a call of it costs more.

Attention to few keys: PyTorch's softmax over fewer than 16 numbers takes ten times as long as over 16.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

ENOUGH = 1_250_000  # multiplications for oneDNN to gain more than a call of it costs
ENOUGH_KEYS = 16
MANY = 100_000  # weights for it to gain, in some 20 calls, from having put them into its own order once


def large_products_by_onednn(usual: int) -> AbstractContextManager[Any]:
    """A block in which they are, unless already the usual one has too few multiplications for asking to pay."""
    return LargeProductsByOneDNN() if usual >= ENOUGH else nullcontext()


class LargeProductsByOneDNN(TorchFunctionMode):
    """In its block, whatever calls for a large enough product of states and weights has it from oneDNN."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if (
            function is nn.functional.linear
            and not kwargs
            and _suits_onednn(args[1], args[0].numel() // len(args[1][0]))
        ):
            return _by_onednn(*args)
        return function(*args, **(kwargs or {}))


def with_enough_keys(keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Few keys, their values and what is added to scores, with more that hide: (..., B, H, S, K), (B, 1, T or 1, S)."""
    length = keys.shape[-2]
    missing = ENOUGH_KEYS - length
    if missing <= 0:
        return keys, values, mask
    mask = keys.new_zeros(keys.shape[-4], 1, 1, length) if mask is None else mask
    keys, values = (nn.functional.pad(states, (0, 0, 0, missing)) for states in (keys, values))
    return keys, values, nn.functional.pad(mask, (0, missing), value=-math.inf)


def linear_map(projection: Any, rows: int) -> Callable[[Tensor], Tensor]:
    """What a linear layer does to about so many rows."""
    if not _is_plain(projection):  # with an adapter, say
        return projection
    return _product_with(projection.weight, projection.bias, rows)


def linear_maps(projections: Sequence[Any], rows: int) -> Callable[[Tensor], Sequence[Tensor]]:
    """What several linear layers do to the same rows, in one product."""
    if not all(map(_is_plain, projections)):
        return lambda states: [projection(states) for projection in projections]
    weight, bias = (torch.cat([getattr(linear, name) for linear in projections]) for name in ("weight", "bias"))
    product, sizes = _product_with(weight, bias, rows), [linear.out_features for linear in projections]
    return lambda states: product(states).split_with_sizes(sizes, -1)


def _product_with(weight: Tensor, bias: Tensor | None, rows: int) -> Callable[[Tensor], Tensor]:
    if not _suits_onednn(weight, rows):
        return partial(nn.functional.linear, weight=weight, bias=bias)
    if weight.numel() >= MANY:
        weight = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return partial(_by_onednn, weight=weight, bias=bias)


def _by_onednn(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return product


def _suits_onednn(weight: Tensor, rows: int) -> bool:
    if type(weight) not in (Tensor, nn.Parameter) or weight.dtype != torch.float32 or weight.device.type != "cpu":
        return False  # it is a distributed tensor, say
    if rows * weight.numel() < ENOUGH:
        return False
    is_exact = not torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled()
    names = ("_reorder_linear_weight", "_linear_pointwise")  # which torch.compile calls
    return is_exact and torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


def _is_plain(linear: Any) -> bool:
    watched = linear._forward_pre_hooks or linear._forward_hooks
    return type(linear) is nn.Linear and type(linear.weight) is nn.Parameter and not watched


__all__ = ["large_products_by_onednn", "linear_map", "linear_maps", "with_enough_keys"]
