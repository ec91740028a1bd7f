"""
What computes the same faster on CPUs, most of it where no gradients are wanted.

Products of states and weights: with float32, PyTorch by itself takes MKL, which on processors that are not Intel's
reaches half of their speed. oneDNN reaches all of it, but a call of it costs more.

Attention in sentences: the fused kernel is made for long texts. For short ones, products of whole batches of matrices
take a third of its time. PyTorch's softmax over fewer than 16 numbers takes ten times as long as over 16.

Little to compute: to share it out among threads takes longer than one of them needs for all.
"""

import ctypes
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

LITTLE = 700_000  # multiplications of a product: with no more, all is done sooner by one thread than by two
ENOUGH = 4_000_000  # for oneDNN to gain more than a call of it costs
ENOUGH_IN_ORDER = 1_250_000  # if the weights have been put into its own order
MANY = 100_000  # weights for it to gain, in some 20 calls, from having put them into its own order once
ENOUGH_KEYS = 16
SHORT = 512  # keys, for attention to be by products


def fast_on_cpu(usual: int) -> AbstractContextManager[Any]:
    """A block in which models are, unless already their usual product has too few multiplications for asking to pay."""
    return FastOnCPU() if usual >= ENOUGH else nullcontext()


class FastOnCPU(TorchFunctionMode):
    """In its block, large products of states and weights are oneDNN's, and attention in sentences is by products."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (
            function is nn.functional.linear
            and not kwargs
            and _suits_onednn(args[1], args[0].numel() // len(args[1][0]), ENOUGH)
        ):
            return _by_onednn(*args)
        if function is nn.functional.scaled_dot_product_attention and _suits_products(*args, **kwargs):
            return sdpa_by_products(*args, attn_mask=kwargs["attn_mask"], scale=kwargs["scale"])
        return function(*args, **kwargs)


@contextmanager
def one_thread_for_little(usual: int) -> Iterator[None]:
    """A block whose usual product has so many multiplications."""
    number, openmp = torch.get_num_threads(), _openmp()
    if usual > LITTLE or number == 1 or openmp is None:
        yield
        return
    openmp.omp_set_num_threads(1)
    try:
        yield
    finally:
        openmp.omp_set_num_threads(number)


@cache
def _openmp() -> ctypes.CDLL | None:
    """What sets the number for this thread alone; PyTorch's own function would for all that begin meanwhile, too."""
    process = ctypes.CDLL(None) if sys.platform == "linux" else None
    return process if hasattr(process, "omp_set_num_threads") else None


def attention_by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, scale: float) -> Tensor:
    """Equation 1 for N heads of sentences: (N, L, K), (N, S, K), (N, S, V), (N or 1, L or 1, S) -> (N, L, V)."""
    return torch.bmm(torch.baddbmm(mask, query, key.transpose(1, 2), alpha=scale).softmax(-1), value)


def sdpa_by_products(query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor | None, scale: float) -> Tensor:
    """What PyTorch's does: (B, H, L, K), (B, H, S, K), (B, H, S, V), (B, 1 or H, 1 or L, S) -> (B, H, L, V)."""
    sizes = query.shape[:2]
    key, value, mask = with_enough_keys(key, value, to_add(attn_mask, query.dtype))
    mask = query.new_zeros(1, 1, 1, 1) if mask is None else mask.expand(*sizes, -1, -1)
    heads = attention_by_products(*(part.flatten(0, 1) for part in (query, key, value, mask)), scale=scale)
    return heads.unflatten(0, sizes)


def to_add(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """To scores of attention: 0 where a mask of truth values has True."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


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
    is_reordered = weight.numel() >= MANY
    if not _suits_onednn(weight, rows, ENOUGH_IN_ORDER if is_reordered else ENOUGH):
        return partial(nn.functional.linear, weight=weight, bias=bias)
    if is_reordered:
        weight = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return partial(_by_onednn, weight=weight, bias=bias)


def _by_onednn(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return product


def _suits_onednn(weight: Tensor, rows: int, enough: int) -> bool:
    if type(weight) not in (Tensor, nn.Parameter) or weight.dtype != torch.float32 or weight.device.type != "cpu":
        return False  # it is a distributed tensor, say
    if rows * weight.numel() < enough:
        return False
    is_exact = not torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled()
    names = ("_reorder_linear_weight", "_linear_pointwise")  # which torch.compile calls
    return is_exact and torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


def _suits_products(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, dropout_p: float = 0.0, **kwargs: Any
) -> bool:
    is_usual = set(kwargs) == {"attn_mask", "scale"} and not is_causal and not dropout_p
    is_short = query.dim() == 4 and key.shape[2] <= SHORT
    return is_usual and is_short and query.device.type == "cpu" and not torch.is_grad_enabled()


def _is_plain(linear: Any) -> bool:
    watched = linear._forward_pre_hooks or linear._forward_hooks
    return type(linear) is nn.Linear and type(linear.weight) is nn.Parameter and not watched


__all__ = [
    "attention_by_products",
    "fast_on_cpu",
    "linear_map",
    "linear_maps",
    "one_thread_for_little",
    "to_add",
    "with_enough_keys",
]
