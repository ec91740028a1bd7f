"""
The decoder one token at a time, for the search in `generate()`: hypotheses, several of a sentence, grow in step.

What hypotheses of a sentence have in common, the source and their first tokens, is there once. To attention they are
like positions of one target, each of which sees the source, and of the tokens of all hypotheses its own ancestors.

Letters of shapes: B sentences, W hypotheses of each, D d_model, L layers, H heads, S source length, T tokens of all
hypotheses of a sentence so far, K size of a head's queries and keys, V size of its values, N vocabulary size.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask

from .products_vanilla import large_products_by_onednn, linear_map, linear_maps, with_enough_keys

MANY_ROWS = 100  # for products of matrices to be a faster attention on CPUs than sdpa
POSITIONS_AT_ONCE = 32

Seen = tuple[Tensor, Tensor, Tensor | None]  # what queries attend to: keys, values, mask


class IncrementalDecoder:
    """The decoder's states after the last token of each hypothesis, and the logits of the next."""

    def __init__(self, model: PreTrainedModel, encoder_states: Tensor, source_mask: Tensor | None, num_beams: int):
        self.decoder: Any = model.get_decoder()
        self.embedding = self.decoder.embed_tokens or model.get_input_embeddings()
        mask = create_bidirectional_mask(model.config, encoder_states[:, :1], source_mask, encoder_states)
        with large_products_by_onednn(usual=encoder_states.numel() * encoder_states.shape[-1]):
            pairs = [layer.cross_attn.keys_and_values(encoder_states) for layer in self.decoder.layers]
        keys, values = (torch.stack(part) for part in zip(*pairs, strict=True))  # (L, B, H, S, K), (L, B, H, S, V)
        *self.source, self.source_mask = with_enough_keys(keys, values, to_add(mask, encoder_states.dtype))
        # 0 where a hypothesis attends to a token, -inf where it does not. A single hypothesis attends to all.
        self.ancestors = encoder_states.new_zeros(len(encoder_states), 1, 1, 0) if num_beams > 1 else None
        self.tokens = [states[:, :, :, :0] for states in self.source]  # (L, B, H, T and room for more, K)
        rows = len(encoder_states) * num_beams
        self.layers = [IncrementalLayer(layer, rows) for layer in self.decoder.layers]
        self.logits = linear_map(model.get_output_embeddings(), rows=rows)  # (B, W, D) -> (B, W, N)
        self.vocab_size = model.config.vocab_size
        self.positions = encoder_states[0, :0]
        self.steps = self.length = 0

    def states(self, tokens: Tensor) -> Tensor:
        """With one more token of each hypothesis: (B, W) -> (B, W, D)."""
        states = self._embed(tokens)
        self._make_room_for(tokens)
        past = (part[:, : len(tokens), :, : self.length].unbind() for part in self.tokens)
        source = (part[:, : len(tokens)].unbind() for part in self.source)
        for layer, keys, values, *of_source in zip(self.layers, *past, *source, strict=True):
            states = layer(states, (keys, values, self.ancestors), (*of_source, self.source_mask))
        return self.decoder.layer_norm(states)

    def _embed(self, tokens: Tensor) -> Tensor:
        states = self.embedding(tokens)
        if self.steps == len(self.positions):
            left = (self.decoder.config.max_position_embeddings or math.inf) - self.steps
            nothing = states.new_zeros(1, max(1, min(POSITIONS_AT_ONCE, left)), states.shape[-1])
            more = self.decoder.embed(None, nothing, None, None, self.steps)[0]
            self.positions = torch.cat([self.positions, more])
        self.steps += 1
        return states * math.sqrt(states.shape[-1]) + self.positions[self.steps - 1]

    def _make_room_for(self, tokens: Tensor) -> None:
        """For keys and values of one more token of each hypothesis, which attends to itself and not to the others."""
        self.length += tokens.shape[1]
        if self.length > self.tokens[0].shape[3]:
            old = [part[:, : len(tokens)] for part in self.tokens]
            self.tokens = [nn.functional.pad(part, (0, 0, 0, 2 * self.length - part.shape[3])) for part in old]
        if self.ancestors is not None:
            own = self.ancestors.new_full((tokens.shape[1],) * 2, -math.inf).fill_diagonal_(0)
            self.ancestors = torch.cat([self.ancestors, own.expand(len(tokens), 1, -1, -1)], dim=-1)  # (B, 1, W, T)

    def choose(self, hypotheses: Tensor) -> None:
        """Go on with these of each sentence: (B, W)."""
        self.ancestors = self.ancestors.take_along_dim(hypotheses[:, None, :, None], dim=2)

    def keep(self, sentences: Tensor) -> None:
        """Go on with these alone. Those that change their places cost time, the others none."""
        self.ancestors = self.ancestors if self.ancestors is None else self.ancestors[sentences]
        self.source_mask = self.source_mask if self.source_mask is None else self.source_mask[sentences]
        places = (sentences != torch.arange(len(sentences), device=sentences.device)).nonzero()[:, 0]
        for part in (*self.source, *self.tokens):
            part[:, places] = part[:, sentences[places]]


class IncrementalLayer:
    """A decoder layer, of which nothing is left but the computation."""

    def __init__(self, layer: Any, rows: int):
        map_of = partial(linear_map, rows=rows)
        own, cross, feed_forward = layer.self_attn, layer.cross_attn, layer.feed_forward
        self.own, self.cross = own, cross
        self.project, self.own_output = linear_maps([own.q_proj, own.k_proj, own.v_proj], rows), map_of(own.o_proj)
        self.query, self.cross_output = map_of(cross.q_proj), map_of(cross.o_proj)
        self.fc1, self.fc2 = map_of(feed_forward.fc1), map_of(feed_forward.fc2)
        self.activation = feed_forward.activation
        self.attend, self.attend_to_source = attention_of(own, rows), attention_of(cross, rows)
        self.around_self_attention = sublayer_of(layer.self_attn_sublayer)
        self.around_cross_attention = sublayer_of(layer.cross_attn_sublayer)
        self.around_feed_forward = sublayer_of(layer.feed_forward_sublayer)

    def __call__(self, states: Tensor, tokens: Seen, source: Seen) -> Tensor:
        """With one more token of each hypothesis, for whose key and value there is room: (B, W, D) -> (B, W, D)."""
        states = self.around_self_attention(states, self._attend_to_tokens, tokens)
        states = self.around_cross_attention(states, self._attend_to_source, source)
        return self.around_feed_forward(states, self._feed_forward)

    def _attend_to_tokens(self, states: Tensor, tokens: Seen) -> Tensor:
        sizes = self.own.head_size, self.own.head_size, self.own.value_size
        query, *new = map(self.own.split_heads, self.project(states), sizes)
        for part, more in zip(tokens, new, strict=False):
            part[:, :, -more.shape[2] :] = more
        return self.own_output(self.attend(query, *tokens).flatten(2))

    def _attend_to_source(self, states: Tensor, source: Seen) -> Tensor:
        query = self.cross.split_heads(self.query(states), self.cross.head_size)
        return self.cross_output(self.attend_to_source(query, *source).flatten(2))

    def _feed_forward(self, states: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(states)))


def to_add(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """To scores of attention: 0 where a mask of truth values has True."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def attention_of(module: Any, rows: int) -> Callable[..., Tensor]:
    """Attention(Q, K, V) of a module's heads: (B, H, W, K), (B, H, T, K), (B, H, T, V), mask -> (B, W, H, V)."""
    if module.config._attn_implementation != "sdpa":
        return lambda *arguments: module.attend(*arguments)[0]
    if rows >= MANY_ROWS and module.q_proj.weight.device.type == "cpu":
        return lambda *arguments: module.attend(*arguments, implementation="eager")[0]
    sdpa = partial(nn.functional.scaled_dot_product_attention, scale=module.scaling)
    return lambda *arguments: sdpa(*arguments).transpose(1, 2)  # without the questions of transformers


def sublayer_of(module: Any) -> Callable[..., Tensor]:
    """What a `VanillaSublayer` in evaluation does with a function of states, which may have more arguments."""
    normalise = norm_of(module.layer_norm)
    if module.norm_first:
        return lambda states, function, *arguments: states + function(normalise(states), *arguments)
    return lambda states, function, *arguments: normalise(states + function(states, *arguments))


def norm_of(module: Any) -> Callable[[Tensor], Tensor]:
    if type(module) is not nn.LayerNorm:
        return module
    shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda states: nn.functional.layer_norm(states, shape, weight, bias, eps)


__all__ = ["IncrementalDecoder"]
