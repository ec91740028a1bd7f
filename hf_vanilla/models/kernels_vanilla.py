"""
Speed: faster kernels for CPUs, with the results of the usual ones. None of them is required: each is used where PyTorch
has it and it is faster.

- Linear layers: for float32, PyTorch calls MKL, which reaches half of the speed of processors that are not Intel's.
  oneDNN reaches all of it, but each call of it costs more, so it is for large products.
- Attention over sentences: PyTorch's fused kernel is made for long texts. For up to some hundred keys, two products of
  whole batches of matrices take a third of its time. PyTorch's softmax over fewer than 16 numbers takes ten times as
  long as over 16, so a few keys are padded to 16.
- Small steps: sharing one out among threads takes longer than computing it on a single one.
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

# Measured on 2 cores of an AMD processor. "Operations" are multiplications of numbers in one product of matrices.
MAX_ONE_THREAD_OPS = 700_000  # up to here a step is faster on one thread
MIN_ONEDNN_OPS = 4_000_000  # from here oneDNN saves more time than its call costs
MIN_ONEDNN_OPS_REORDERED = 1_250_000  # the same, with weights in oneDNN's own order
MIN_WEIGHTS_TO_REORDER = 100_000  # from here reordering the weights once pays within some 20 calls
MIN_SOFTMAX_KEYS = 16  # fewer are padded
MAX_PRODUCT_KEYS = 512  # beyond this PyTorch's fused attention is faster, and needs less memory


def fast_on_cpu(typical_ops: int) -> AbstractContextManager[Any]:
    """Enable the fast kernels in a `with` block, unless a typical product in it is too small for them to pay."""
    return FastOnCPU() if typical_ops >= MIN_ONEDNN_OPS else nullcontext()


class FastOnCPU(TorchFunctionMode):
    """In its `with` block, large linear layers run by oneDNN, and attention over sentences by products of matrices."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is nn.functional.linear and not kwargs and _are_plain_floats(*args[:2]):
            states, weight = args[:2]
            if _suits_onednn(weight, states.numel() // weight.shape[1], MIN_ONEDNN_OPS):
                return _by_onednn(*args)
        if function is nn.functional.scaled_dot_product_attention and _suits_products(*args, **kwargs):
            return _sdpa_by_products(*args, attn_mask=kwargs["attn_mask"], scale=kwargs["scale"])
        return function(*args, **kwargs)


@contextmanager
def one_thread_if_small(ops: int) -> Iterator[None]:
    """Run a `with` block on one thread if it has few operations, or else on as many as usual."""
    threads, openmp = torch.get_num_threads(), _openmp()
    if ops > MAX_ONE_THREAD_OPS or threads == 1 or openmp is None:
        yield
        return
    openmp.omp_set_num_threads(1)
    try:
        yield
    finally:
        openmp.omp_set_num_threads(threads)


@cache
def _openmp() -> ctypes.CDLL | None:
    """OpenMP's own function sets the number for the calling thread; PyTorch's would for all that start meanwhile."""
    process = ctypes.CDLL(None) if sys.platform == "linux" else None
    return process if hasattr(process, "omp_set_num_threads") else None


def attention_by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, scale: float) -> Tensor:
    """
    Equation 1 in three calls, for N heads of all sentences: (N, L, K), (N, S, K), (N, S, V), (N or 1, L or 1, S) ->
    (N, L, V). The mask is added to the scores.
    """
    return torch.bmm(torch.baddbmm(mask, query, key.transpose(1, 2), alpha=scale).softmax(-1), value)


def _sdpa_by_products(query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor | None, scale: float) -> Tensor:
    """With the arguments of PyTorch's own: (B, H, L, K), (B, H, S, K), (B, H, S, V), (B, 1 or H, 1 or L, S)."""
    sizes = query.shape[:2]
    key, value, mask = pad_to_min_keys(key, value, additive(attn_mask, query.dtype))
    mask = query.new_zeros(1, 1, 1, 1) if mask is None else mask.expand(*sizes, -1, -1)
    heads = attention_by_products(*(part.flatten(0, 1) for part in (query, key, value, mask)), scale=scale)
    return heads.unflatten(0, sizes)


def additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What a boolean mask adds to the scores: 0 where it is True. Other masks are additive already."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def pad_to_min_keys(keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Pad few keys, their values and the additive mask, which hides them: (..., B, H, S, K), (B, 1, T or 1, S)."""
    length = keys.shape[-2]
    missing = MIN_SOFTMAX_KEYS - length
    if missing <= 0:
        return keys, values, mask
    mask = keys.new_zeros(keys.shape[-4], 1, 1, length) if mask is None else mask
    keys, values = (nn.functional.pad(states, (0, 0, 0, missing)) for states in (keys, values))
    return keys, values, nn.functional.pad(mask, (0, missing), value=-math.inf)


def linear_map(projection: Any, rows: int) -> Callable[[Tensor], Tensor]:
    """The fastest function that computes what a linear layer does to about this many rows."""
    if not is_plain_linear(projection):  # an adapter or a quantised layer, say: it is called as it is
        return projection
    return _product_with(projection.weight, projection.bias, rows)


def linear_maps(projections: Sequence[Any], rows: int) -> Callable[[Tensor], Sequence[Tensor]]:
    """What several linear layers do to the same rows, in one product."""
    if not all(map(is_plain_linear, projections)):
        return lambda states: [projection(states) for projection in projections]
    weight, bias = (torch.cat([getattr(linear, name) for linear in projections]) for name in ("weight", "bias"))
    product, sizes = _product_with(weight, bias, rows), [linear.out_features for linear in projections]
    return lambda states: product(states).split_with_sizes(sizes, -1)


def is_plain_linear(module: nn.Module) -> bool:
    """
    Whether a call of this module is exactly a product with its `weight`, which may then be used without the call.

    Anything else has to be called: layers of another class (adapters, quantised ones), hooks (which may gather or move
    the weight first), a replaced `forward`, and weights of another class (DTensor, quantised ones).
    """
    if type(module) is not nn.Linear or "forward" in vars(module) or type(module.weight) is not nn.Parameter:
        return False
    hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return not any(hooks)


def _product_with(weight: Tensor, bias: Tensor | None, rows: int) -> Callable[[Tensor], Tensor]:
    is_reordered = weight.numel() >= MIN_WEIGHTS_TO_REORDER
    min_ops = MIN_ONEDNN_OPS_REORDERED if is_reordered else MIN_ONEDNN_OPS
    if not _are_plain_floats(weight) or not _suits_onednn(weight, rows, min_ops):
        return partial(nn.functional.linear, weight=weight, bias=bias)
    if is_reordered:
        weight = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return partial(_by_onednn, weight=weight, bias=bias)


def _by_onednn(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return product


def _are_plain_floats(*tensors: Tensor) -> bool:
    """Whether they are ordinary float32 tensors on a CPU: not distributed, not quantised, not nested."""
    return all(
        type(tensor) in (Tensor, nn.Parameter) and tensor.dtype == torch.float32 and tensor.device.type == "cpu"
        for tensor in tensors
    )


def _suits_onednn(weight: Tensor, rows: int, min_ops: int) -> bool:
    if rows * weight.numel() < min_ops:
        return False
    is_exact = not torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled()
    return is_exact and _has_onednn()


def _has_onednn() -> bool:
    """Whether PyTorch has the two operators, which are not documented: without them it is slower, not wrong."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


def _suits_products(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, dropout_p: float = 0.0, **kwargs: Any
) -> bool:
    is_usual = set(kwargs) == {"attn_mask", "scale"} and not is_causal and not dropout_p
    is_ordinary = type(query) is Tensor and query.device.type == "cpu" and not torch.is_grad_enabled()
    return is_usual and is_ordinary and query.dim() == 4 and key.shape[2] <= MAX_PRODUCT_KEYS


__all__ = [
    "MIN_SOFTMAX_KEYS",
    "additive",
    "attention_by_products",
    "fast_on_cpu",
    "is_plain_linear",
    "linear_map",
    "linear_maps",
    "one_thread_if_small",
    "pad_to_min_keys",
]
