"""Models that compute the same as ours: Marian's (post-norm) and Pegasus's (pre-norm) of transformers."""

import re

import torch
from transformers import (
    MarianConfig,
    MarianMTModel,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PreTrainedModel,
)

from ..models.configuration_vanilla import VanillaConfig
from ..models.modeling_vanilla import VanillaForConditionalGeneration, VanillaSinusoidalPositions

MAX_POSITIONS = 1024
NAMES = {
    r"encoder\.embed_tokens": "shared",
    r"\bo_proj": "out_proj",
    r"cross_attn\.": "encoder_attn.",
    r"self_attn_sublayer\.layer_norm": "self_attn_layer_norm",
    r"cross_attn_sublayer\.layer_norm": "encoder_attn_layer_norm",
    r"feed_forward_sublayer\.layer_norm": "final_layer_norm",
    r"feed_forward\.": "",
}


def peer_of(config: VanillaConfig) -> PreTrainedModel:
    """A new model of transformers with the same sizes, and random weights."""
    if not config.tie_word_embeddings or config.position_embedding_type != "sinusoidal":
        raise ValueError("the models of transformers to compare with have tied embeddings and sinusoidal positions")
    if not config.d_kv == config.d_v == config.d_model // config.num_heads:
        raise ValueError("the models of transformers to compare with have heads of d_model / num_heads")
    sizes = {
        name: getattr(config, name)
        for name in ("vocab_size", "d_model", "encoder_layers", "decoder_layers", "dropout", "attention_dropout")
    }
    sizes |= {"encoder_ffn_dim": config.d_ff, "decoder_ffn_dim": config.d_ff}
    sizes |= {"encoder_attention_heads": config.num_heads, "decoder_attention_heads": config.num_heads}
    ids = {name: getattr(config, name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    others = {"activation_function": config.activation_function, "scale_embedding": True, "forced_eos_token_id": None}
    others |= {"max_position_embeddings": MAX_POSITIONS}
    if config.norm_first:
        return PegasusForConditionalGeneration(PegasusConfig(**sizes, **ids, **others))
    return MarianMTModel(MarianConfig(**sizes, **ids, **others))


@torch.no_grad()
def peer_with_the_weights_of(model: VanillaForConditionalGeneration) -> PreTrainedModel:
    """A model of transformers with the same logits and the same generation configuration."""
    peer = peer_of(model.config).eval()
    weights = {}
    for name, weight in model.state_dict().items():
        for ours, theirs in NAMES.items():
            name = re.sub(ours, theirs, name)
        weights[name] = weight
    unexpected = peer.load_state_dict(weights, strict=False).unexpected_keys
    if unexpected:
        raise ValueError(f"{type(peer).__name__} has no {', '.join(unexpected)}")
    positions = VanillaSinusoidalPositions(model.config)(torch.arange(MAX_POSITIONS))
    for stack in (peer.get_encoder(), peer.get_decoder()):
        stack.embed_positions.weight.copy_(positions)
    peer.tie_weights()
    peer.generation_config = model.generation_config
    return peer
