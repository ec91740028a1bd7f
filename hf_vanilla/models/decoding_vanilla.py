"""
The decoder one token at a time, for the search in `generate()`: hypotheses, several of a sentence, grow in step.

What hypotheses of a sentence have in common, the source and their first tokens, is there once. To attention they are
like positions of one target, each of which sees the source, and of the tokens of all hypotheses its own ancestors.

Letters of shapes: B sentences, W hypotheses of each, D d_model, H heads, S source length, T tokens of all hypotheses of
a sentence so far, K size of a head's queries and keys, N vocabulary size.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask

ENOUGH = 1_000_000  # multiplications for oneDNN to gain more than a call of it costs


class IncrementalDecoder:
    """The decoder's states after the last token of each hypothesis, and the logits of the next."""

    def __init__(self, model: PreTrainedModel, encoder_states: Tensor, source_mask: Tensor | None, num_beams: int):
        self.decoder: Any = model.get_decoder()
        self.embedding = self.decoder.embed_tokens or model.get_input_embeddings()
        self.source_mask = create_bidirectional_mask(model.config, encoder_states[:, :1], source_mask, encoder_states)
        # 0 where a hypothesis attends to a token, -inf where it does not. A single hypothesis attends to all.
        self.ancestors = encoder_states.new_zeros(len(encoder_states), 1, 1, 0) if num_beams > 1 else None
        rows = len(encoder_states) * num_beams
        self.layers = [IncrementalLayer(layer, encoder_states, rows) for layer in self.decoder.layers]
        self.logits = linear_map(model.get_output_embeddings(), rows=rows)  # (B, W, D) -> (B, W, N)
        self.vocab_size = model.config.vocab_size
        self.length = 0

    def states(self, tokens: Tensor) -> Tensor:
        """With one more token of each hypothesis: (B, W) -> (B, W, D)."""
        states = self.decoder.embed(None, self.embedding(tokens.reshape(-1, 1)), None, None, self.length)[:, 0]
        if self.ancestors is not None:
            own = states.new_full(tokens.shape[1:] * 2, -math.inf).fill_diagonal_(0)
            self.ancestors = torch.cat([self.ancestors, own.expand(len(tokens), 1, -1, -1)], dim=-1)  # (B, 1, W, T)
        self.length += 1
        for layer in self.layers:
            states = layer(states, len(tokens), self.ancestors, self.source_mask)
        return self.decoder.layer_norm(states).view(*tokens.shape, -1)

    def choose(self, hypotheses: Tensor) -> None:
        """Go on with these of each sentence: (B, W)."""
        self.ancestors = self.ancestors.take_along_dim(hypotheses[:, None, :, None], dim=2)

    def keep(self, sentences: Tensor) -> None:
        """Go on with these alone. Those that change their places cost time, the others none."""
        self.ancestors = self.ancestors if self.ancestors is None else self.ancestors[sentences]
        self.source_mask = self.source_mask if self.source_mask is None else self.source_mask[sentences]
        places = (sentences != torch.arange(len(sentences), device=sentences.device)).nonzero()[:, 0]
        for layer in self.layers:
            layer.move(sentences[places], places)


class IncrementalLayer:
    """A decoder layer, the keys and values of the encoder, and those of the tokens so far."""

    def __init__(self, layer: Any, encoder_states: Tensor, rows: int):
        self.layer = layer
        map_of = partial(linear_map, rows=rows)
        own, cross, feed_forward = layer.self_attn, layer.cross_attn, layer.feed_forward
        self.project, self.own_output = map_of(own.q_proj, own.k_proj, own.v_proj), map_of(own.o_proj)
        self.query, self.cross_output = map_of(cross.q_proj), map_of(cross.o_proj)
        self.fc1, self.fc2 = map_of(feed_forward.fc1), map_of(feed_forward.fc2)
        self.attend, self.attend_to_source = attention_of(own), attention_of(cross)
        self.encoder = [states.contiguous() for states in cross.keys_and_values(encoder_states)]  # (B, H, S, K)
        self.tokens = [states[:, :, :0] for states in self.encoder]  # (B, H, T and room for more, K)
        self.length = 0

    def __call__(self, states: Tensor, sentences: int, ancestors: Tensor | None, source_mask: Tensor | None) -> Tensor:
        """With one more token of each hypothesis: (B * W, D) -> (B * W, D)."""
        layer, shape = self.layer, (sentences, len(states) // sentences)
        states = layer.self_attn_sublayer(states, lambda x: self._attend_to_tokens(x, shape, ancestors))
        states = layer.cross_attn_sublayer(states, lambda x: self._attend_to_source(x, shape, source_mask))
        return layer.feed_forward_sublayer(states, lambda x: self.fc2(layer.feed_forward.activation(self.fc1(x))))

    def _attend_to_tokens(self, states: Tensor, shape: tuple[int, int], ancestors: Tensor | None) -> Tensor:
        query, *more = (self._heads(x, shape) for x in self.project(states))
        keys, values = self._with_more(*more)
        found = self.attend(query, keys, values, ancestors)  # (B, W, H, V)
        return self.own_output(found.reshape(len(states), -1))

    def _attend_to_source(self, states: Tensor, shape: tuple[int, int], mask: Tensor | None) -> Tensor:
        keys, values = (states[: shape[0]] for states in self.encoder)
        found = self.attend_to_source(self._heads(self.query(states), shape), keys, values, mask)
        return self.cross_output(found.reshape(len(states), -1))

    def _heads(self, states: Tensor, shape: tuple[int, int]) -> Tensor:
        return states.view(*shape, self.encoder[0].shape[1], -1).transpose(1, 2)  # (B * W, H * K) -> (B, H, W, K)

    def _with_more(self, *more: Tensor) -> list[Tensor]:
        """Keys and values of the tokens so far, and of one more of each hypothesis: (B, H, W, K) -> (B, H, T, K)."""
        start, self.length = self.length, self.length + more[0].shape[2]
        if self.length > self.tokens[0].shape[2]:
            room = 2 * self.length
            old = [states[: len(more[0])] for states in self.tokens]
            self.tokens = [nn.functional.pad(states, (0, 0, 0, room - states.shape[2])) for states in old]
        for states, added in zip(self.tokens, more, strict=True):
            states[: len(added), :, start : self.length] = added
        return [states[: len(added), :, : self.length] for states, added in zip(self.tokens, more, strict=True)]

    def move(self, sentences: Tensor, places: Tensor) -> None:
        for states in (*self.encoder, *self.tokens):
            states[places] = states[sentences]


def attention_of(module: Any) -> Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]:
    """Attention(Q, K, V) of a module's heads: (B, H, W, K), (B, H, T, K), (B, H, T, V) -> (B, W, H, V)."""
    if module.config._attn_implementation == "sdpa":  # without the questions of transformers, which take as long
        sdpa = partial(nn.functional.scaled_dot_product_attention, scale=module.scaling)
        return lambda *arguments: sdpa(*arguments).transpose(1, 2)
    return lambda *arguments: module.attend(*arguments)[0]


def linear_map(*projections: Any, rows: int) -> Callable[[Tensor], Any]:
    """
    One linear map of about so many rows, or several of the same rows side by side in one product of matrices.

    On CPUs by oneDNN where that may gain: with float32, PyTorch by itself takes MKL, which on processors that are not
    Intel's reaches half of the speed.
    """
    if not all(is_plain(linear) for linear in projections):  # with an adapter, say
        return projections[0] if len(projections) == 1 else lambda states: [linear(states) for linear in projections]
    weight, bias = projections[0].weight, projections[0].bias
    if len(projections) > 1:
        weight = torch.cat([linear.weight for linear in projections])
        bias = torch.cat([linear.bias for linear in projections])
    if rows * weight.numel() >= ENOUGH and onednn_has_products_of(weight):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        product = partial(by_onednn, weight=packed, bias=bias)
    else:
        product = partial(nn.functional.linear, weight=weight, bias=bias)
    if len(projections) == 1:
        return product
    sizes = [linear.out_features for linear in projections]
    return lambda states: product(states).split(sizes, dim=-1)


def by_onednn(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return product


def onednn_has_products_of(weight: Tensor) -> bool:
    names = ("_reorder_linear_weight", "_linear_pointwise")  # which torch.compile calls
    is_there = torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)
    is_exact = weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return is_there and is_exact and weight.device.type == "cpu"


def is_plain(linear: Any) -> bool:
    watched = linear._forward_pre_hooks or linear._forward_hooks
    return type(linear) is nn.Linear and type(linear.weight) is nn.Parameter and not watched


__all__ = ["IncrementalDecoder"]
