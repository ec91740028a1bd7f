"""
The Transformer of "Attention Is All You Need" (Vaswani et al., 2017), in the order of the paper's section 3 read from
the inside out: attention (3.2), feed-forward networks (3.3), positions (3.5), sub-layers and layers (3.1), stacks,
embeddings and output (3.4), training loss (5.4). Numbers in brackets are sections of the paper.

Letters of shapes: B batch, S source length, T target length, L either of them, D d_model, H heads, K size of a head's
queries and keys, V size of a head's values, N vocabulary size.
"""

import math
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_vanilla import VanillaConfig
from .generation_vanilla import VanillaGenerationMixin
from .kernels_vanilla import is_plain_linear
from .loss_vanilla import distance_of_halves, projected_cross_entropy

IGNORED = -100  # the label of a position that the loss leaves out, as everywhere in transformers


def scaled_dot_product_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Equation 1 (3.2.1): softmax(Q K^T / sqrt(d_k)) V. The mask is added to the scores: 0 attends, -inf does not."""
    scores = query @ key.transpose(2, 3) * scaling  # (B, H, T, K), (B, H, S, K) -> (B, H, T, S)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2), weights  # (B, H, T, S), (B, H, S, V) -> (B, T, H, V)


class VanillaAttention(nn.Module):
    """Multi-head attention (3.2.2): Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W^Q_i, K W^K_i, V W^V_i)."""

    def __init__(self, config: VanillaConfig, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal  # without it the backends of transformers would take every attention for causal
        self.num_heads, self.head_size, self.value_size = config.num_heads, config.d_kv, config.d_v
        self.scaling = config.d_kv**-0.5
        self.dropout = config.attention_dropout
        self.q_proj = nn.Linear(config.d_model, config.num_heads * config.d_kv)
        self.k_proj = nn.Linear(config.d_model, config.num_heads * config.d_kv)
        self.v_proj = nn.Linear(config.d_model, config.num_heads * config.d_v)
        self.o_proj = nn.Linear(config.num_heads * config.d_v, config.d_model)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Queries come from `hidden_states`; keys and values too, or from the encoder if its states are given."""
        query = self.split_heads(self.q_proj(hidden_states), self.head_size)
        if encoder_hidden_states is None:
            key, value = self.keys_and_values(hidden_states)
            if past_key_values is not None:
                key, value = past_key_values.self_attention_cache.update(key, value, self.layer_idx)
        else:
            key, value = self._encoder_keys_and_values(encoder_hidden_states, past_key_values)
        heads, weights = self.attend(query, key, value, attention_mask, **kwargs)
        return self.o_proj(heads.flatten(2)), weights  # (B, T, H, V) -> (B, T, D)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention(Q, K, V) by the chosen implementation: (B, H, L, K), (B, H, S, K) -> (B, L, H, V)."""
        implementation = self.config._attn_implementation
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, scaled_dot_product_attention)
        dropout = self.dropout if self.training else 0.0
        return attend(self, query, key, value, attention_mask, scaling=self.scaling, dropout=dropout, **kwargs)

    def split_heads(self, states: Tensor, size: int) -> Tensor:
        return states.view(*states.shape[:2], -1, size).transpose(1, 2)  # (B, L, H * K) -> (B, H, L, K)

    def keys_and_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        key = self.split_heads(self.k_proj(states), self.head_size)
        return key, self.split_heads(self.v_proj(states), self.value_size)

    def _encoder_keys_and_values(self, states: Tensor, cache: EncoderDecoderCache | None) -> tuple[Tensor, Tensor]:
        """The encoder's keys and values do not change from one target token to the next: computed once if cached."""
        if cache is None:
            return self.keys_and_values(states)
        if cache.is_updated.get(self.layer_idx):
            layer = cache.cross_attention_cache.layers[self.layer_idx]
            return layer.keys, layer.values
        cache.is_updated[self.layer_idx] = True
        return cache.cross_attention_cache.update(*self.keys_and_values(states), self.layer_idx)


class VanillaFeedForward(nn.Module):
    """Position-wise feed-forward network (3.3), equation 2: FFN(x) = max(0, x W_1 + b_1) W_2 + b_2."""

    def __init__(self, config: VanillaConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.d_model, config.d_ff)
        self.activation = ACT2FN[config.activation_function]
        self.dropout = nn.Dropout(config.activation_dropout)
        self.fc2 = nn.Linear(config.d_ff, config.d_model)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.fc2(self.dropout(self.activation(self.fc1(hidden_states))))


class VanillaSinusoidalPositions(nn.Module):
    """
    Positional encoding (3.5): PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same.

    Computed from the positions whenever needed: there is no table, hence no longest sequence.
    """

    def __init__(self, config: VanillaConfig):
        super().__init__()
        self.d_model = config.d_model

    def forward(self, positions: Tensor) -> Tensor:
        even = torch.arange(0, self.d_model, 2, dtype=torch.float32, device=positions.device)  # 2i
        angles = positions[..., None].float() * torch.exp(even * (-math.log(10_000) / self.d_model))
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)  # (B, L, D / 2, 2) -> (B, L, D)


class VanillaLearnedPositions(nn.Embedding):
    """Learned positions instead of sinusoids (3.5; Table 3, row E)."""

    def __init__(self, config: VanillaConfig):
        super().__init__(config.max_position_embeddings, config.d_model)


POSITIONS = {"sinusoidal": VanillaSinusoidalPositions, "learned": VanillaLearnedPositions}


def positions_of(attention_mask: Tensor | None, length: int, past_length: int | Tensor, device: torch.device) -> Tensor:
    """Positions of the last `length` tokens. Padding, on whichever side, takes up no position."""
    if attention_mask is None or attention_mask.dim() != 2:
        return torch.arange(length, device=device)[None] + past_length
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]


class VanillaSublayer(nn.Module):
    """
    The residual connection around every sub-layer: LayerNorm(x + Dropout(Sublayer(x))) (3.1, 5.4).

    With `norm_first` x + Dropout(Sublayer(LayerNorm(x))), the pre-norm of later work. The sub-layer comes as a
    function, not as a module: accelerate would move a module that is an argument from device to device.
    """

    def __init__(self, config: VanillaConfig):
        super().__init__()
        self.norm_first = config.norm_first
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_states: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return hidden_states + self.dropout(sublayer(self.layer_norm(hidden_states)))
        return self.layer_norm(hidden_states + self.dropout(sublayer(hidden_states)))


class VanillaEncoderLayer(GradientCheckpointingLayer):
    """Encoder layer (3.1): self-attention, then a feed-forward network."""

    def __init__(self, config: VanillaConfig, layer_idx: int):
        super().__init__()
        self.self_attn = VanillaAttention(config, layer_idx)
        self.self_attn_sublayer = VanillaSublayer(config)
        self.feed_forward = VanillaFeedForward(config)
        self.feed_forward_sublayer = VanillaSublayer(config)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        hidden_states = self.self_attn_sublayer(hidden_states, lambda x: self.self_attn(x, attention_mask, **kwargs)[0])
        return self.feed_forward_sublayer(hidden_states, lambda x: self.feed_forward(x))


class VanillaDecoderLayer(GradientCheckpointingLayer):
    """Decoder layer (3.1): causal self-attention, attention over the encoder's output, a feed-forward network."""

    def __init__(self, config: VanillaConfig, layer_idx: int):
        super().__init__()
        self.self_attn = VanillaAttention(config, layer_idx, is_causal=True)
        self.self_attn_sublayer = VanillaSublayer(config)
        self.cross_attn = VanillaAttention(config, layer_idx)
        self.cross_attn_sublayer = VanillaSublayer(config)
        self.feed_forward = VanillaFeedForward(config)
        self.feed_forward_sublayer = VanillaSublayer(config)

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        hidden_states = self.self_attn_sublayer(
            hidden_states,
            lambda x: self.self_attn(x, attention_mask, past_key_values=past_key_values, **kwargs)[0],
        )
        hidden_states = self.cross_attn_sublayer(
            hidden_states,
            lambda x: self.cross_attn(x, encoder_attention_mask, encoder_hidden_states, past_key_values, **kwargs)[0],
        )
        return self.feed_forward_sublayer(hidden_states, lambda x: self.feed_forward(x))


class VanillaPreTrainedModel(PreTrainedModel):
    """What transformers needs to know of every model here, and how fresh weights are drawn."""

    config: VanillaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["VanillaEncoderLayer", "VanillaDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    # With these kernels transformers takes the padding of the sources out of the targets too: wrong without an error.
    _supports_flash_attn = False
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """
        The paper does not say. Here: uniform within 1 / sqrt(inputs), as PyTorch draws, and embeddings of unit norm.
        With the larger weights of Xavier, as in its authors' tensor2tensor, post-norm learns far more slowly.
        """
        if isinstance(module, nn.Linear):
            init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        else:
            super()._init_weights(module)

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """Source and target share the vocabulary even where they do not share the matrix."""
        resize = (new_num_tokens, pad_to_multiple_of, mean_resizing)
        decoder = self.get_decoder()
        if decoder is not self and decoder.embed_tokens is not None:
            decoder.resize_token_embeddings(*resize)
        return super().resize_token_embeddings(*resize)

    def save_pretrained(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        """As in transformers, but who may read the configuration may read the weights, too: not their owner alone."""
        super().save_pretrained(save_directory, *args, **kwargs)
        for weights in Path(save_directory).glob("model*.safetensors"):
            with suppress(OSError):  # the file belongs to another user, or its file system has no modes
                weights.chmod(stat.S_IMODE((Path(save_directory) / "config.json").stat().st_mode))


class VanillaStack(VanillaPreTrainedModel):
    """What encoder and decoder have in common: embeddings and positions (3.4, 3.5) under a stack of layers (3.1)."""

    def __init__(self, config: VanillaConfig, layers: Sequence[nn.Module], has_embedding: bool = True):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model) if has_embedding else None
        self.embed_positions = POSITIONS[config.position_embedding_type](config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        # With pre-norm nothing has normalised the sum of the last sub-layer yet.
        self.layer_norm = nn.LayerNorm(config.d_model, config.layer_norm_eps) if config.norm_first else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    def init_parallel_plans(self) -> None:
        """The configuration's plans name layers from the base model down: they are not a stack's own."""
        super().init_parallel_plans()
        self.tp_plan.clear()
        self.fsdp_plan.clear()

    def embed(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        past_length: int | Tensor = 0,
    ) -> Tensor:
        """Dropout(sqrt(d_model) embedding(token) + position) (3.4, 3.5, 5.4): (B, L) -> (B, L, D)."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"{type(self).__name__} needs either token ids or embeddings of tokens, not both or none")
        if inputs_embeds is None:
            if self.embed_tokens is None:
                raise ValueError("a decoder that shares the encoder's embedding needs embeddings of tokens, not ids")
            inputs_embeds = self.embed_tokens(input_ids)
        length = inputs_embeds.shape[1]
        self._check_length(length, past_length)
        if position_ids is None:
            position_ids = positions_of(attention_mask, length, past_length, inputs_embeds.device)
        positions = self.embed_positions(position_ids).to(inputs_embeds.dtype)
        return self.dropout(inputs_embeds * math.sqrt(self.config.d_model) + positions)

    def mask_of_source(
        self, hidden_states: Tensor, attention_mask: Tensor | None, encoder_hidden_states: Tensor | None = None
    ) -> Any:
        """Hides padding. Without any there would be nothing to hide, but to look for it would hold up a GPU."""
        may_look = attention_mask is None or hidden_states.device.type == "cpu"
        return create_bidirectional_mask(
            self.config,
            hidden_states,
            attention_mask,
            encoder_hidden_states,
            allow_is_bidirectional_skip=may_look,
        )

    def _check_length(self, length: int, past_length: int | Tensor) -> None:
        if self.config.position_embedding_type != "learned" or isinstance(past_length, Tensor):
            return  # a static cache counts on the device, where a look would cost more than the step
        limit = self.config.max_position_embeddings
        if past_length + length > limit:
            raise ValueError(
                f"a sequence of {past_length + length} tokens is longer than the {limit} learned positions: shorten "
                "it, or use a model with more max_position_embeddings or with sinusoidal positions"
            )


class VanillaEncoder(VanillaStack):
    """The encoder stack (3.1), left half of Figure 1."""

    _can_record_outputs = {"hidden_states": VanillaEncoderLayer, "attentions": VanillaAttention}

    def __init__(self, config: VanillaConfig):
        super().__init__(config, [VanillaEncoderLayer(config, i) for i in range(config.encoder_layers)])

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        hidden_states = self.embed(input_ids, inputs_embeds, attention_mask, position_ids)
        mask = self.mask_of_source(hidden_states, attention_mask)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


class VanillaDecoder(VanillaStack):
    """The decoder stack (3.1), right half of Figure 1."""

    _can_record_outputs = {
        "hidden_states": VanillaDecoderLayer,
        "attentions": OutputRecorder(VanillaAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VanillaAttention, index=1, layer_name="cross_attn"),
    }

    def __init__(self, config: VanillaConfig):
        layers = [VanillaDecoderLayer(config, i) for i in range(config.decoder_layers)]
        super().__init__(config, layers, has_embedding=not config.tie_word_embeddings)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        past_length = 0 if past_key_values is None else past_key_values.get_seq_length()
        hidden_states = self.embed(input_ids, inputs_embeds, attention_mask, position_ids, past_length)
        self_cache = None if past_key_values is None else past_key_values.self_attention_cache
        causal_mask = create_causal_mask(self.config, hidden_states, attention_mask, self_cache)
        cross_mask = self.mask_of_source(hidden_states, encoder_attention_mask, encoder_hidden_states)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                encoder_hidden_states,
                causal_mask,
                encoder_attention_mask=cross_mask,
                past_key_values=past_key_values,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.layer_norm(hidden_states), past_key_values=past_key_values
        )


class VanillaModel(VanillaPreTrainedModel):
    """Encoder and decoder (Figure 1), up to the decoder's last states."""

    def __init__(self, config: VanillaConfig):
        super().__init__(config)
        self.encoder = VanillaEncoder(config)
        self.decoder = VanillaDecoder(config)
        self.post_init()

    def init_parallel_plans(self) -> None:
        """The decoder has an embedding, to be split like the encoder's, only if they are not shared."""
        super().init_parallel_plans()
        if self.decoder.embed_tokens is not None:
            self.tp_plan["decoder.embed_tokens"] = self.tp_plan["encoder.embed_tokens"]

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """
        Args:
            attention_mask: (B, S), 1 for tokens of the source, 0 for padding on either side.
            decoder_attention_mask: The same for the target, past tokens included. Future tokens are hidden anyway.
            encoder_outputs: What the encoder returned for this source before, also as a tuple, to skip it.
            position_ids: Where the source tokens stand; counted from the mask if not given.
            decoder_position_ids: The same for the target.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds, position_ids, **kwargs)
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        if self.decoder.embed_tokens is None and decoder_input_ids is not None and decoder_inputs_embeds is None:
            decoder_input_ids, decoder_inputs_embeds = None, self.encoder.embed_tokens(decoder_input_ids)
        decoder_outputs = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            position_ids=decoder_position_ids,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class VanillaForConditionalGeneration(VanillaPreTrainedModel, VanillaGenerationMixin):
    """The whole of Figure 1: the model, the output projection (3.4), and the loss it is trained with (5.4)."""

    _tied_weights_keys = {"lm_head.weight": "model.encoder.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def __init__(self, config: VanillaConfig):
        super().__init__(config)
        self.model = VanillaModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        # Not marked as derived from the configuration: else a loaded one would lack the keys that are only ours.
        derived = GenerationConfig.from_model_config(config).to_diff_dict().items()
        self.generation_config = GenerationConfig(**{key: value for key, value in derived if not key.startswith("_")})
        self.post_init()

    def pipeline(self, tokenizer: Any, **arguments: Any) -> Any:
        """What `pipeline("translation", model=FOLDER, trust_remote_code=True)` gives, for a model that is loaded."""
        from .pipeline_vanilla import TranslationPipeline  # also has transformers save that file beside the weights

        return TranslationPipeline(model=self, tokenizer=tokenizer, task="translation", **arguments)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The decoder reads the target shifted right by one position (3.1, Figure 1)."""
        shifted = labels.roll(1, dims=-1)
        shifted[:, 0] = self.config.decoder_start_token_id
        return shifted.masked_fill(shifted == IGNORED, self.config.pad_token_id)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        skip_logits: bool = False,
        r_drop: float = 0.0,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """
        Args:
            labels: (B, T), the target, not shifted, ending in <eos>; -100 where there is none. The decoder's input is
                made from it unless given.
            logits_to_keep: How many logits to compute, counted from the end, or at which positions; 0 means all.
            num_items_in_batch: How many labels the whole optimiser step has, on all devices and in all accumulated
                batches: what the sum of losses is divided by. The number of labels here if not given.
            skip_logits: With labels, return no logits. If `lm_head` is an ordinary linear layer without bias, the loss
                then takes much less memory and time, because the logits of the whole batch never exist.
            r_drop: If not 0, the second half of the batch is the first once more, and the loss also has this weight
                times the distance between what is predicted for the two with different dropout (Liang et al., 2021).

        The other arguments are those of `VanillaModel.forward`.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            position_ids=position_ids,
            decoder_position_ids=decoder_position_ids,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        hidden_states = outputs.last_hidden_state[:, kept]
        skip_logits = skip_logits and labels is not None
        is_fused = skip_logits and is_plain_linear(self.lm_head) and self.lm_head.bias is None
        logits = None if is_fused else self.lm_head(hidden_states)  # (B, T, D) -> (B, T, N)
        loss = None if labels is None else self._loss(hidden_states, logits, labels, num_items_in_batch, r_drop)
        states = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=None if skip_logits else logits, **states)

    def _loss(
        self,
        hidden_states: Tensor,
        logits: Tensor | None,
        labels: Tensor,
        num_items_in_batch: int | Tensor | None,
        r_drop: float,
    ) -> Tensor:
        """Cross-entropy; in training against the smoothed target (5.4): 1 - eps, and eps spread over all tokens."""
        labels = labels.flatten().to(hidden_states.device)
        smoothing = self.config.label_smoothing if self.training else 0.0
        if logits is None:
            weight = self.lm_head.weight
            total = projected_cross_entropy(hidden_states.flatten(0, 1), weight, labels, IGNORED, smoothing, r_drop)
        else:
            logits = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
            total = nn.functional.cross_entropy(
                logits, labels.to(logits.device), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
            )
            if r_drop:
                total = total + r_drop * distance_of_halves(logits, labels.ne(IGNORED))
        return total / (labels.ne(IGNORED).sum() if num_items_in_batch is None else num_items_in_batch)


__all__ = ["VanillaForConditionalGeneration", "VanillaModel", "VanillaPreTrainedModel"]
