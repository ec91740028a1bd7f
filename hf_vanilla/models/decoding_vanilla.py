"""
The decoder one token at a time, for the search in `generate()`: hypotheses, several of a sentence, grow in step.

Letters of shapes: B sentences, W hypotheses of each, D d_model, H heads, S source length, T tokens so far, K size of a
head's queries and keys.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask


class IncrementalDecoder:
    """The decoder's states after the last token of each hypothesis."""

    def __init__(self, model: PreTrainedModel, encoder_states: Tensor, source_mask: Tensor | None):
        self.decoder: Any = model.get_decoder()
        self.head: Any = model.get_output_embeddings()
        self.embedding = self.decoder.embed_tokens or model.get_input_embeddings()
        self.mask = create_bidirectional_mask(model.config, encoder_states[:, :1], source_mask, encoder_states)
        self.layers = [IncrementalLayer(layer, encoder_states) for layer in self.decoder.layers]
        self.length = 0

    def states(self, tokens: Tensor) -> Tensor:
        """With one more token of each hypothesis: (B, W) -> (B, W, D)."""
        states = self.decoder.embed(None, self.embedding(tokens.reshape(-1, 1)), None, None, self.length)[:, 0]
        self.length += 1
        for layer in self.layers:
            states = layer(states, self.mask)
        return self.decoder.layer_norm(states).view(*tokens.shape, -1)

    def choose(self, hypotheses: Tensor) -> None:
        """Go on with these, counted over all sentences."""
        for layer in self.layers:
            layer.choose(hypotheses)

    def keep(self, sentences: Tensor) -> None:
        """Go on with these sentences alone. Their hypotheses are to be chosen besides."""
        self.mask = self.mask if self.mask is None else self.mask[sentences]
        for layer in self.layers:
            layer.keep(sentences)


class IncrementalLayer:
    """
    A decoder layer, the keys and values of the encoder: (B, H, S, K), and those of the tokens so far: (B * W, H, T, K).

    To all but self-attention, the hypotheses of a sentence are like positions of one target.
    """

    def __init__(self, layer: Any, encoder_states: Tensor):
        self.layer = layer
        attention = layer.self_attn
        self.project = side_by_side([attention.q_proj, attention.k_proj, attention.v_proj])
        keys, values = layer.cross_attn.keys_and_values(encoder_states)
        self.encoder_keys, self.encoder_values = keys.contiguous(), values.contiguous()
        self.keys, self.values = self.encoder_keys[:, :, :0], self.encoder_values[:, :, :0]

    def __call__(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """With one more token of each hypothesis: (B * W, D) -> (B * W, D)."""
        layer = self.layer
        states = layer.self_attn_sublayer(states, self._attend_to_tokens)
        states = layer.cross_attn_sublayer(states, lambda x: self._attend_to_source(x, mask))
        return layer.feed_forward_sublayer(states, lambda x: layer.feed_forward(x))

    def _attend_to_tokens(self, states: Tensor) -> Tensor:
        attention = self.layer.self_attn
        heads = len(states), attention.num_heads, 1, -1
        query, key, value = (projected.view(heads) for projected in self.project(states))
        self.keys, self.values = torch.cat([self.keys, key], dim=2), torch.cat([self.values, value], dim=2)
        return attention.o_proj(attention.attend(query, self.keys, self.values)[0].reshape(len(states), -1))

    def _attend_to_source(self, states: Tensor, mask: Tensor | None) -> Tensor:
        attention = self.layer.cross_attn
        heads = len(self.encoder_keys), -1, attention.num_heads, attention.head_size
        query = attention.q_proj(states).view(heads).transpose(1, 2)  # (B * W, D) -> (B, H, W, K)
        found, _ = attention.attend(query, self.encoder_keys, self.encoder_values, mask)  # (B, W, H, V)
        return attention.o_proj(found.reshape(len(states), -1))

    def choose(self, hypotheses: Tensor) -> None:
        self.keys, self.values = self.keys.index_select(0, hypotheses), self.values.index_select(0, hypotheses)

    def keep(self, sentences: Tensor) -> None:
        self.encoder_keys = self.encoder_keys.index_select(0, sentences)
        self.encoder_values = self.encoder_values.index_select(0, sentences)


def side_by_side(projections: Sequence[Any]) -> Callable[[Tensor], Sequence[Tensor]]:
    """Linear maps of the same states in one matrix product, if they are no more than that: adapters are."""
    if not all(type(linear) is nn.Linear and type(linear.weight) is nn.Parameter for linear in projections):
        return lambda states: [projection(states) for projection in projections]
    weight = torch.cat([linear.weight for linear in projections])
    bias = torch.cat([linear.bias for linear in projections])
    sizes = [linear.out_features for linear in projections]
    return lambda states: nn.functional.linear(states, weight, bias).split(sizes, dim=-1)


__all__ = ["IncrementalDecoder"]
