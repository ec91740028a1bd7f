"""
Attention times the size of what it adds: the norm of alpha v W_O (Kobayashi et al., 2020).

A large weight on a position whose values are small adds little. The map W_O is taken as the model computes it, head by
head, so adapters and quantised layers count as they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .reading import KINDS, Kind, Maps, Place, attentions_of, inputs_of, reading


def added_by_heads(
    model: PreTrainedModel, source: Sequence[int], target: Sequence[int], kinds: Sequence[Kind] = KINDS
) -> dict[Place, np.ndarray]:
    """What each head adds for each key that has all of its attention: (heads, keys, d_model). Bias of W_O left out."""
    modules = attentions_of(model, kinds)
    added: dict[Place, np.ndarray] = {}
    with (
        reading(model),
        outputs_of({place: cast(nn.Module, module.v_proj) for place, module in modules.items()}) as values,
    ):
        model.base_model(**inputs_of(model, [source], [target]), use_cache=False)
        for place, module in modules.items():
            added[place] = _added(module, values[place][0], model.config.num_heads)
    return added


def _added(module: Any, values: Tensor, heads: int) -> np.ndarray:
    keys, width = values.shape
    apart = values.new_zeros(heads, keys, heads, width // heads)
    each = torch.arange(heads)
    apart[each, :, each] = values.view(keys, heads, -1).transpose(0, 1)
    nothing = module.o_proj(values.new_zeros(1, width))
    found: np.ndarray = (module.o_proj(apart.flatten(2)) - nothing).float().cpu().numpy()
    return found


@contextmanager
def outputs_of(modules: Mapping[Place, nn.Module]) -> Iterator[dict[Place, Tensor]]:
    """What some modules have returned in the last forward pass."""
    outputs: dict[Place, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _, inputs, output, place=place: outputs.__setitem__(place, output))
        for place, module in modules.items()
    ]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def weighted_by_head(maps: Maps, added: Mapping[Place, np.ndarray]) -> Maps:
    """The norm of what each weight adds: of the same shapes as the maps."""

    def of(kind: Kind) -> np.ndarray:
        weights = maps.of(kind)
        layers = [
            weights[layer] * np.linalg.norm(added[kind, layer], axis=-1)[:, None] for layer in range(len(weights))
        ]
        return np.stack(layers) if layers else weights

    return Maps(*map(of, KINDS))


def weighted_by_layer(maps: Maps, added: Mapping[Place, np.ndarray], kind: Kind) -> np.ndarray:
    """
    The norm of what all heads together add from each key: (layers, queries, keys). Heads can work against each other,
    so that it is less than the sum of theirs.
    """
    layers = []
    for layer, weights in enumerate(maps.of(kind).astype(np.float64)):
        of_layer = added[kind, layer].astype(np.float64)
        products = np.einsum("hkd,gkd->hgk", of_layer, of_layer)
        squares = np.einsum("hqk,gqk,hgk->qk", weights, weights, products, optimize=True)
        layers.append(np.sqrt(squares.clip(0)))
    return np.stack(layers).astype(np.float32) if layers else np.zeros((0, *maps.of(kind).shape[2:]), np.float32)
