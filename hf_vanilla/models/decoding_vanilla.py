"""
Speed: the decoder one token at a time, for the search in `generate()`. The same numbers as `VanillaDecoder`, with less
work:

- The source's keys and values, and the tokens that hypotheses of a sentence have in common, are there once for each
  sentence. To attention, the hypotheses are like positions of one target: each sees the source, and of the tokens of
  all hypotheses those that it grew from (its ancestors).
- Layers run as functions over their weights: no modules are called, and nothing is computed for dropout.

Letters of shapes: B sentences, W hypotheses of each, D d_model, L layers, H heads, S source length, T tokens of all
hypotheses of a sentence so far, K size of a head's queries and keys, V size of its values, N vocabulary size.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask

from .kernels_vanilla import (
    MIN_SOFTMAX_KEYS,
    additive,
    attention_by_products,
    fast_on_cpu,
    linear_map,
    linear_maps,
    one_thread_if_small,
    pad_to_min_keys,
)

POSITIONS_AT_ONCE = 32  # how many are computed ahead

Seen = tuple[Tensor, Tensor, Tensor]
"""What attention looks at, by heads of sentences: keys, values, and the mask that is added to the scores."""


class IncrementalDecoder:
    """
    The decoder's states after the last token of each hypothesis, and the logits of the next token.

    Args:
        model: A `VanillaForConditionalGeneration` in evaluation mode.
        encoder_states: (B, S, D), what its encoder returned.
        source_mask: (B, S), 1 for tokens, 0 for padding; None without padding.
        num_beams: The most hypotheses of a sentence, W.
    """

    def __init__(self, model: PreTrainedModel, encoder_states: Tensor, source_mask: Tensor | None, num_beams: int):
        self.decoder: Any = model.get_decoder()
        self.embedding = self.decoder.embed_tokens or model.get_input_embeddings()
        mask = create_bidirectional_mask(model.config, encoder_states[:, :1], source_mask, encoder_states)
        with fast_on_cpu(typical_ops=encoder_states.numel() * encoder_states.shape[-1]):
            pairs = [layer.cross_attn.keys_and_values(encoder_states) for layer in self.decoder.layers]
        keys, values = (torch.stack(part) for part in zip(*pairs, strict=True))  # (L, B, H, S, K), (L, B, H, S, V)
        *self.source, mask = pad_to_min_keys(keys, values, additive(mask, encoder_states.dtype))
        mask = keys.new_zeros(1, 1, 1, 1) if mask is None else mask
        self.source_mask = mask.expand(*keys.shape[1:3], -1, -1)  # (B, H, 1, S)
        self.of_source = self._of_source()
        # 0 where a hypothesis attends to a token, -inf where it does not
        self.ancestors = encoder_states.new_zeros(len(encoder_states), 1, 1, 0)
        self.own = encoder_states.new_full((num_beams, num_beams), -math.inf).fill_diagonal_(0)
        room = MIN_SOFTMAX_KEYS
        self.tokens = [states.new_zeros(*states.shape[:3], room, states.shape[4]) for states in self.source]
        rows = len(encoder_states) * num_beams
        self.layers = [IncrementalLayer(layer, rows) for layer in self.decoder.layers]
        self.logits = linear_map(model.get_output_embeddings(), rows=rows)  # (B, W, D) -> (B, W, N)
        self.vocab_size = model.config.vocab_size
        self.positions = encoder_states[0, :0]
        self.padding: Tensor | None = None
        self.steps = self.length = 0

    def read(self, prefix: Tensor, mask: Tensor | None = None) -> None:
        """
        Begin the targets with these tokens, except the last, which the first step reads.

        One pass is enough: hypotheses are like positions to attention, so here positions take the place of hypotheses.

        Args:
            prefix: (B, T).
            mask: (B, T), 0 for padding. The last tokens are none.
        """
        is_token = torch.ones_like(prefix) if mask is None else mask.long()
        positions = (is_token.cumsum(-1) - 1).clamp(min=0)
        self.padding = None if mask is None else prefix.shape[1] - 1 - positions[:, -1:]
        self.steps = prefix.shape[1] - 1
        self._compute_positions(prefix.shape[1])
        if self.steps == 0:
            return
        is_hidden = is_token[:, None, None, :-1] == 0
        seen = self.ancestors.new_zeros(is_hidden.shape).masked_fill_(is_hidden, -math.inf)
        visible = seen + seen.new_full((self.steps, self.steps), -math.inf).triu_(1)
        visible.diagonal(dim1=2, dim2=3).zero_()  # attention of padding to nothing would be NaN
        self._states(prefix[:, :-1], positions[:, :-1], visible)
        self.ancestors = seen

    def states(self, tokens: Tensor) -> Tensor:
        """With one more token of each hypothesis: (B, W) -> (B, W, D)."""
        # Each attends to its own new token, not to the others'.
        own = self.own[: tokens.shape[1], : tokens.shape[1]].expand(len(tokens), 1, -1, -1)
        self.ancestors = torch.cat([self.ancestors, own], dim=-1)  # (B, 1, W, T)
        self._compute_positions(self.steps + 1)
        self.steps += 1
        position = self.steps - 1 if self.padding is None else self.steps - 1 - self.padding
        return self._states(tokens, position, self.ancestors)

    def choose(self, hypotheses: Tensor) -> None:
        """Go on with these of each sentence: (B, W)."""
        self.ancestors = self.ancestors.take_along_dim(hypotheses[:, None, :, None], dim=2)

    def keep(self, sentences: Tensor) -> None:
        """Go on with these sentences only. Only those that change their places are copied."""
        self.ancestors = self.ancestors[sentences]
        self.source_mask = self.source_mask[sentences]
        self.padding = None if self.padding is None else self.padding[sentences]
        places = (sentences != torch.arange(len(sentences), device=sentences.device)).nonzero()[:, 0]
        for part in (*self.source, *self.tokens):
            part[:, places] = part[:, sentences[places]]
        self.of_source = self._of_source()

    def _states(self, tokens: Tensor, positions: Tensor | int, visible: Tensor) -> Tensor:
        """Of new tokens: (B, W), (B, W or 1), (B, 1, W, T), which is 0 where they attend to a token -> (B, W, D)."""
        with one_thread_if_small(ops=tokens.numel() * self.decoder.config.d_model**2):
            states = self.embedding(tokens)
            states = states * math.sqrt(states.shape[-1]) + self.positions[positions]  # as `VanillaStack.embed`
            self._make_room_for(tokens)
            room, of_tokens = self._room_and_tokens(visible)
            for layer, new, past, source in zip(self.layers, room, of_tokens, self.of_source, strict=True):
                states = layer(states, new, past, source)
            return self.decoder.layer_norm(states)

    def _compute_positions(self, number: int) -> None:
        """So that there are at least as many, and some for the next steps."""
        there = len(self.positions)
        if number > there:
            left: Any = getattr(self.decoder.config, "max_position_embeddings", math.inf) - there
            ahead = max(number - there, min(POSITIONS_AT_ONCE, left))
            nothing = self.positions.new_zeros(1, ahead, self.positions.shape[1])
            more = self.decoder.embed(None, nothing, None, None, there)[0]
            self.positions = torch.cat([self.positions, more])

    def _make_room_for(self, tokens: Tensor) -> None:
        """For keys and values of these tokens."""
        self.length += tokens.shape[1]
        if self.length > self.tokens[0].shape[3]:
            self.tokens = [with_room(part[:, : len(tokens)], 2 * self.length) for part in self.tokens]

    def _room_and_tokens(self, visible: Tensor) -> tuple[Iterator[tuple[Tensor, Tensor]], Iterator[Seen]]:
        """For each layer: where the new keys and values go, (B, H, W, K or V), and what the tokens attend to."""
        sentences, width = visible.shape[0], visible.shape[2]
        parts = [part[:, :sentences] for part in self.tokens]
        seen = max(self.length, MIN_SOFTMAX_KEYS)
        visible = visible.repeat(1, parts[0].shape[2], 1, 1).flatten(0, 1)
        if seen > self.length:
            visible = nn.functional.pad(visible, (0, seen - self.length), value=-math.inf)
        keys, values = (part[:, :, :, :seen].flatten(1, 2) for part in parts)
        room = (part[:, :, :, self.length - width : self.length].unbind() for part in parts)
        return zip(*room, strict=True), zip(keys, values, repeat(visible))

    def _of_source(self) -> list[Seen]:
        """For each layer: what attention to the source looks at."""
        keys, values = (part[:, : len(self.source_mask)].flatten(1, 2) for part in self.source)
        return list(zip(keys, values, repeat(self.source_mask.flatten(0, 1))))


class IncrementalLayer:
    """A `VanillaDecoderLayer` as functions over its weights, for about this many rows of states."""

    def __init__(self, layer: Any, rows: int):
        map_of = partial(linear_map, rows=rows)
        own, cross, feed_forward = layer.self_attn, layer.cross_attn, layer.feed_forward
        self.own, self.cross = own, cross
        self.project, self.own_output = linear_maps([own.q_proj, own.k_proj, own.v_proj], rows), map_of(own.o_proj)
        self.query, self.cross_output = map_of(cross.q_proj), map_of(cross.o_proj)
        self.attend, self.attend_to_source = attention_of(own), attention_of(cross)
        parts = {"fc1": map_of(feed_forward.fc1), "fc2": map_of(feed_forward.fc2)}
        self.feed_forward = formula_of(feed_forward, activation=feed_forward.activation, **parts)
        self.self_attn_sublayer = sublayer_of(layer.self_attn_sublayer)
        self.cross_attn_sublayer = sublayer_of(layer.cross_attn_sublayer)
        self.feed_forward_sublayer = sublayer_of(layer.feed_forward_sublayer)

    def __call__(self, states: Tensor, room: Sequence[Tensor], tokens: Seen, source: Seen) -> Tensor:
        """With one more token of each hypothesis, whose key and value go into `room`: (B, W, D) -> (B, W, D)."""
        states = self.self_attn_sublayer(states, partial(self._attend_to_tokens, room=room, tokens=tokens))
        states = self.cross_attn_sublayer(states, partial(self._attend_to_source, source=source))
        return self.feed_forward_sublayer(states, self.feed_forward)

    def _attend_to_tokens(self, states: Tensor, room: Sequence[Tensor], tokens: Seen) -> Tensor:
        sizes = self.own.head_size, self.own.head_size, self.own.value_size
        query, *new = map(self.own.split_heads, self.project(states), sizes)
        for part, more in zip(room, new, strict=True):
            part.copy_(more)
        return self.own_output(self.attend(query, *tokens))

    def _attend_to_source(self, states: Tensor, source: Seen) -> Tensor:
        query = self.cross.split_heads(self.query(states), self.cross.head_size)
        return self.cross_output(self.attend_to_source(query, *source))


def formula_of(module: Any, **parts: Any) -> Callable[..., Tensor]:
    """A module's own `forward` over these parts, and without dropout: the formula stands in the model alone."""
    return partial(type(module).forward, SimpleNamespace(dropout=lambda states: states, **parts))


def sublayer_of(sublayer: Any) -> Callable[..., Tensor]:
    return formula_of(sublayer, norm_first=sublayer.norm_first, layer_norm=norm_of(sublayer.layer_norm))


def norm_of(module: Any) -> Callable[[Tensor], Tensor]:
    if type(module) is not nn.LayerNorm:
        return module
    shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda states: nn.functional.layer_norm(states, shape, weight, bias, eps)


def attention_of(module: Any) -> Callable[..., Tensor]:
    """Attention(Q, K, V) of a module's heads: (B, H, W, K), (B * H, T, K), (B * H, T, V), mask -> (B, W, H * V)."""
    if module.config._attn_implementation == "sdpa" and module.q_proj.weight.device.type == "cpu":

        def attend(query: Tensor, *seen: Tensor) -> Tensor:
            heads = attention_by_products(query.flatten(0, 1), *seen, scale=module.scaling)
            return heads.view(*query.shape[:3], -1).transpose(1, 2).flatten(2)

    else:

        def attend(query: Tensor, *seen: Tensor) -> Tensor:
            return module.attend(query, *(part.unflatten(0, query.shape[:2]) for part in seen))[0].flatten(2)

    return attend


def with_room(states: Tensor, length: int) -> Tensor:
    """For this many tokens: (L, B, H, T, K)."""
    longer = states.new_empty(*states.shape[:3], length, states.shape[4])
    longer[:, :, :, : states.shape[3]] = states
    return longer


__all__ = ["IncrementalDecoder"]
