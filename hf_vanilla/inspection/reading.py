"""
The attention of a model, as arrays.

Targets are read in one forward pass, however they were found: that gives the attention of the search itself, and nobody
has to keep track of beams. For the moment the model computes its attention in the way that gives the weights; then it
has back what it had.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..inference.alignments import MAX_TOKENS, MAX_WEIGHTS, reading_attention, weights_of
from ..inference.batching import batches_by_length, mask_of, padded
from ..inference.scoring import start_token

Kind = Literal["encoder", "decoder", "cross"]
"""Of the source to itself, of the target to itself, and of the target to the source."""

KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")

Place = tuple[Kind, int]
"""An attention of the model: its kind, and its layer from 0."""


reading = reading_attention
"""In this block attention gives its weights, and nothing is for training. Afterwards the model is as before."""


@dataclass(frozen=True)
class Maps:
    """
    Attention weights of one pair, without padding, in float32. A kind that was not asked for has no layers.

    Row t of `decoder` and `cross` is that of the position that predicts target token t; this position reads the token
    before it, the first one the start token. So column j of `decoder` is the start token, or target token j - 1.

    Args:
        encoder: (layers, heads, source tokens, source tokens).
        decoder: (layers, heads, target tokens, target tokens).
        cross: (layers, heads, target tokens, source tokens).
    """

    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray

    def of(self, kind: Kind) -> np.ndarray:
        maps: np.ndarray = getattr(self, kind)
        return maps


def maps_of(
    model: PreTrainedModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    kinds: Sequence[Kind] = KINDS,
    max_tokens: int = MAX_TOKENS,
) -> list[Maps]:
    """
    The attention of each pair, all of it in memory: for many pairs use `each_maps_of`.

    Args:
        sources: Token ids, with <eos>.
        targets: Token ids without the start token, with <eos> if they have come to their end.
        max_tokens: Padded tokens of a batch, of the longer side.
    """
    found = dict(each_maps_of(model, sources, targets, kinds, max_tokens))
    return [found[place] for place in range(len(found))]


def each_maps_of(
    model: PreTrainedModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    kinds: Sequence[Kind] = KINDS,
    max_tokens: int = MAX_TOKENS,
) -> Iterator[tuple[int, Maps]]:
    """As `maps_of`, one after the other, each with its place among the pairs. The longest come first."""
    sizes = [(len(target), len(source)) for source, target in zip(sources, targets, strict=True)]
    if not all(map(all, sizes)):
        place = next(place for place, size in enumerate(sizes) if not all(size))
        raise ValueError(
            f"pair {place} has an empty {'source' if sizes[place][0] else 'target'}: there is no attention"
        )
    modules = attentions_of(model, kinds)
    most = MAX_WEIGHTS // max(1, len(modules) * model.config.num_heads)
    for batch in batches_by_length(list(map(max, sizes)), max_tokens, max_weights=most):
        with reading(model), weights_of(modules) as weights:
            model.base_model(
                **inputs_of(model, [sources[p] for p in batch], [targets[p] for p in batch]), use_cache=False
            )
        for row, place in enumerate(batch):
            target, source = sizes[place]
            cut = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
            yield place, Maps(*(stacked(model, weights, kind, row, *cut[kind]) for kind in KINDS))


def attentions_of(model: PreTrainedModel, kinds: Sequence[Kind] = KINDS) -> dict[Place, nn.Module]:
    """The model's attentions of these kinds."""
    encoder: Any = model.get_encoder()
    decoder: Any = model.get_decoder()
    each = {
        "encoder": [layer.self_attn for layer in encoder.layers],
        "decoder": [layer.self_attn for layer in decoder.layers],
        "cross": [layer.cross_attn for layer in decoder.layers],
    }
    return {(kind, layer): module for kind in kinds for layer, module in enumerate(each[kind])}


def inputs_of(
    model: PreTrainedModel, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> dict[str, Tensor]:
    """What the model reads: the source, and the target without its last token behind the start token."""
    pad, device, start = model.config.pad_token_id, model.device, start_token(model)
    return {
        "input_ids": padded(sources, pad, device),
        "attention_mask": mask_of(sources, device),
        "decoder_input_ids": padded([[start, *target[:-1]] for target in targets], pad, device),
    }


def stacked(
    model: PreTrainedModel, weights: dict[Place, Tensor], kind: Kind, row: int, queries: int, keys: int
) -> np.ndarray:
    """All layers of a kind for one row of the batch: (layers, heads, queries, keys)."""
    layers = [weights[place][row, :, :queries, :keys] for place in weights if place[0] == kind]
    if not layers:
        return np.zeros((0, model.config.num_heads, queries, keys), np.float32)
    return torch.stack(layers).numpy()
