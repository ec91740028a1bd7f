"""
Models without some of their attention heads.

A head reaches the rest of the model only through its own columns of the output projection W^O (3.2.2): with these at 0
the head adds nothing, and the bias of the projection stays. So every way to compute the model knows of it, also the
fast search of `generate()`, which reads the weights and calls no modules. (transformers 5 has no `head_mask` any more.)
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models.kernels_vanilla import is_plain_linear
from .reading import KINDS, Kind, Place, attentions_of


class Head(NamedTuple):
    """An attention head; layer and head are counted from 0, as in `output_attentions` and in the generation config."""

    kind: Kind
    layer: int
    head: int

    def __str__(self) -> str:
        """As people count, and as the command line and the model card do: from 1."""
        return f"{self.kind} layer {self.layer + 1} head {self.head + 1}"


def heads_of(model: PreTrainedModel) -> list[Head]:
    """All heads: those of the encoder, of the decoder, and those between them, each from the first layer on."""
    attentions: dict[Place, Any] = attentions_of(model)
    return [
        Head(kind, layer, head)
        for (kind, layer), attention in attentions.items()
        for head in range(attention.num_heads)
    ]


@contextmanager
def without_heads(model: PreTrainedModel, heads: Iterable[tuple[Kind, int, int]]) -> Iterator[None]:
    """
    A block in which these heads add nothing to the model's output. Behind it the weights are as before, to the bit.

        with without_heads(model, [("cross", 1, 0), ("encoder", 0, 3)]):
            model.generate(...)

    Do not train inside of it: what an optimiser does to the weights of these heads is lost.

    Args:
        heads: Kind ("encoder", "decoder" or "cross"), layer and head, both from 0.
    """
    attentions: dict[Place, Any] = attentions_of(model)
    chosen = [checked(attentions, Head(*head)) for head in heads]
    with ExitStack() as stack:
        for kind, layer, head in chosen:
            stack.enter_context(_without(attentions[kind, layer], head))
        yield


@contextmanager
def _without(attention: Any, head: int) -> Iterator[None]:
    columns = slice(head * attention.value_size, (head + 1) * attention.value_size)
    projection = attention.o_proj
    before = projection.weight[:, columns].detach().clone()
    try:
        with torch.no_grad():
            projection.weight[:, columns] = 0
        yield
    finally:
        with torch.no_grad():
            projection.weight[:, columns] = before


def checked(attentions: Mapping[Place, Any], head: Head) -> Head:
    """The same, if the model has this head and what it adds can be taken out."""
    if head.kind not in KINDS:
        raise ValueError(f"there is no kind of attention {head.kind!r}: choose one of {', '.join(KINDS)}")
    layers = sum(kind == head.kind for kind, _ in attentions)
    if not 0 <= head.layer < layers:
        raise ValueError(f"layer {head.layer} of {head.kind} attention: the model has {layers}, counted from 0")
    attention = attentions[head.kind, head.layer]
    if not 0 <= head.head < attention.num_heads:
        raise ValueError(
            f"head {head.head} of {head.kind} layer {head.layer}: there are {attention.num_heads}, counted from 0"
        )
    projection = attention.o_proj
    if not is_plain_linear(projection) or projection.weight.is_meta:
        raise ValueError(
            f"{head.kind} layer {head.layer}: o_proj is no plain nn.Linear in memory ({type(projection).__name__}), so "
            "no head can be taken out: merge adapters, and load the model without quantisation, hooks and offloading"
        )
    return head


@contextmanager
def scaled_heads(model: PreTrainedModel, number: int) -> Iterator[dict[Place, Tensor]]:
    """
    A block in which what each head adds is multiplied by a factor for each of `number` examples.

    The factors, (B, H) for each kind and layer, are 1 and require gradients: those of Michel et al. (2019).
    """
    attentions: dict[Place, Any] = attentions_of(model)
    factors = {
        place: torch.ones(number, each.num_heads, device=each.o_proj.weight.device, requires_grad=True)
        for place, each in attentions.items()
    }
    with ExitStack() as stack:
        for place, attention in attentions.items():
            stack.enter_context(_scaled(attention, factors[place]))
        yield factors


@contextmanager
def _scaled(attention: Any, factors: Tensor) -> Iterator[None]:
    def multiply(module: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
        of_heads = inputs[0].unflatten(-1, (attention.num_heads, attention.value_size))  # (B, T, H, V)
        return ((of_heads * factors[:, None, :, None].to(of_heads.dtype)).flatten(-2),)

    hook = attention.o_proj.register_forward_pre_hook(multiply)
    try:
        yield
    finally:
        hook.remove()
