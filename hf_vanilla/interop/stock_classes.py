"""
Models of transformers that compute what ours compute: Marian's (post-norm, sinusoidal positions), Pegasus's (pre-norm,
sinusoidal) and Blenderbot's (pre-norm, learned).

Theirs put all sines before all cosines, ours take turns as in the paper. Nothing else knows the order of the residual
dimensions, so whatever reads or writes them is permuted alike.
"""

import re
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BlenderbotConfig,
    BlenderbotForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
)

from ..models.configuration_vanilla import VanillaConfig
from ..models.modeling_vanilla import VanillaForConditionalGeneration, VanillaSinusoidalPositions
from .errors import InteropError

MAX_POSITIONS = 1024
CLASSES: dict[tuple[bool, str], tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
    (False, "sinusoidal"): (MarianConfig, MarianMTModel),
    (True, "sinusoidal"): (PegasusConfig, PegasusForConditionalGeneration),
    (True, "learned"): (BlenderbotConfig, BlenderbotForConditionalGeneration),
}
"""By `norm_first` and `position_embedding_type`."""
NAMES = {
    ".o_proj.": ".out_proj.",
    ".cross_attn.": ".encoder_attn.",
    ".self_attn_sublayer.layer_norm.": ".self_attn_layer_norm.",
    ".cross_attn_sublayer.layer_norm.": ".encoder_attn_layer_norm.",
    ".feed_forward_sublayer.layer_norm.": ".final_layer_norm.",
    ".feed_forward.fc1.": ".fc1.",
    ".feed_forward.fc2.": ".fc2.",
}
"""Ours and theirs, which are fairseq's too."""
READS = re.compile(r"([qkv]_proj|fc1|embed_tokens|embed_positions|shared|lm_head)\.weight$")
"""Weights that have the residual dimensions as their columns, by their names."""
WRITES = re.compile(r"(out_proj|fc2|layer_norm)\.(weight|bias)$")
"""Weights that have them as their rows."""
SAME_FIELDS = (
    *("vocab_size", "d_model", "encoder_layers", "decoder_layers", "activation_function", "tie_word_embeddings"),
    *("dropout", "attention_dropout", "activation_dropout"),
    *("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"),
)


def sines_first(width: int) -> Tensor:
    """For each residual dimension of theirs, the one of ours."""
    return torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])


def permuted(name: str, weight: Tensor, order: Tensor) -> Tensor:
    """
    Args:
        name: As they call it.
    """
    if READS.search(name):
        return weight[:, order]
    return weight[order] if WRITES.search(name) else weight


def their_name(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def our_name(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def stock_config(config: VanillaConfig) -> PreTrainedConfig:
    """Refused by name, unless a class of transformers computes exactly this."""
    kinds = CLASSES.get((config.norm_first, config.position_embedding_type))
    head = config.d_model // config.num_heads
    refusals = {
        "learned positions without norm_first": kinds is None,
        f"layer_norm_eps {config.layer_norm_eps:g}, which is 1e-05 there": config.layer_norm_eps != 1e-5,
        f"heads of d_kv {config.d_kv} and d_v {config.d_v}, which are d_model / num_heads there": not (
            config.d_kv == config.d_v == head and head * config.num_heads == config.d_model
        ),
    }
    for what in (what for what, holds in refusals.items() if holds):
        raise InteropError(f"no class of transformers computes what this model does: it has {what}")
    assert kinds is not None  # noqa: S101 -- for mypy
    values: dict[str, Any] = {name: getattr(config, name) for name in SAME_FIELDS}
    values |= {f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in _of_stacks(config)}
    values |= {"scale_embedding": True, "forced_eos_token_id": None}
    values["max_position_embeddings"] = getattr(config, "max_position_embeddings", MAX_POSITIONS)
    if kinds[0] is MarianConfig:
        values["share_encoder_decoder_embeddings"] = config.tie_word_embeddings
    return kinds[0](**values)


def _of_stacks(config: VanillaConfig) -> tuple[tuple[str, int], ...]:
    return ("attention_heads", config.num_heads), ("ffn_dim", config.d_ff)


def stock_model(config: VanillaConfig) -> PreTrainedModel:
    """A new model of transformers with the same sizes, and random weights."""
    theirs = stock_config(config)
    return CLASSES[config.norm_first, config.position_embedding_type][1](theirs)


@torch.no_grad()
def stock_model_like(model: VanillaForConditionalGeneration) -> PreTrainedModel:
    """A model of transformers with the same logits and the same generation configuration."""
    config = model.config
    stock = stock_model(config).eval().to(model.dtype)
    is_sinusoidal = config.position_embedding_type == "sinusoidal"
    order = sines_first(config.d_model) if is_sinusoidal else torch.arange(config.d_model)
    found = {their_name(name): weight for name, weight in model.state_dict().items()}
    if config.tie_word_embeddings:
        found["model.decoder.embed_tokens.weight"] = found["model.encoder.embed_tokens.weight"]
    found["model.shared.weight"] = found["model.encoder.embed_tokens.weight"]
    if is_sinusoidal:
        positions = VanillaSinusoidalPositions(config)(torch.arange(stock.config.max_position_embeddings))
        found |= {f"model.{stack}.embed_positions.weight": positions for stack in ("encoder", "decoder")}
    needed = stock.state_dict().keys()
    weights = {name: permuted(name, weight, order).contiguous() for name, weight in found.items() if name in needed}
    if lost := found.keys() - weights.keys() - {"model.shared.weight"}:
        raise InteropError(f"{type(stock).__name__} has no {', '.join(sorted(lost))}")
    missing = stock.load_state_dict(weights, strict=False).missing_keys
    if missing := [name for name in missing if name != "final_logits_bias"]:
        raise InteropError(f"{type(stock).__name__} needs {', '.join(missing)} as well")
    stock.tie_weights()
    stock.generation_config = model.generation_config
    return stock
