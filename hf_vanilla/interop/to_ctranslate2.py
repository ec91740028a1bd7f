"""Our model in the form of CTranslate2: every configuration that it computes exactly, in the type asked for."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from ..inference.ctranslate2_engine import SINUSOIDS, check_search
from ..models.configuration_vanilla import VanillaConfig
from ..models.modeling_vanilla import VanillaForConditionalGeneration, VanillaSinusoidalPositions
from ..run_directory import GENERATION_CONFIG, MODEL_CONFIG
from ..weights import CONFIG
from .errors import InteropError
from .usual_search import refuse_other_searches

ACTIVATIONS = {  # names of transformers, and those of `ctranslate2.specs.common_spec.Activation`
    "relu": "RELU",
    **dict.fromkeys(("gelu", "gelu_python"), "GELU"),
    **dict.fromkeys(
        ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_accurate", "gelu_python_tanh"),
        "GELUTanh",
    ),
    "quick_gelu": "GELUSigmoid",
    **dict.fromkeys(("silu", "swish"), "SWISH"),
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}
QUANTIZATIONS = (
    *("float32", "float16", "bfloat16", "int16"),
    *("int8", "int8_float32", "int8_float16", "int8_bfloat16"),
)


def export(run: Path, output: Path, *, quantization: str = "float32") -> None:
    """
    Write what CTranslate2 loads, and beside it our configurations and the tokenizer, for `Translator`.

    Args:
        quantization: The type of the weights, one of QUANTIZATIONS.
    """
    if quantization not in QUANTIZATIONS:
        raise InteropError(f"--quantization ({quantization}) must be one of {', '.join(QUANTIZATIONS)}")
    model = AutoModelForSeq2SeqLM.from_pretrained(run, dtype=torch.float32).eval()
    refuse_other_searches(check_search, model.generation_config)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(run)
    specification = specification_of(model, vocabulary_of(model.config, tokenizer), tokenizer)
    specification.validate()
    specification.optimize(quantization)
    specification.save(str(output))
    shutil.copyfile(run / CONFIG, output / MODEL_CONFIG)  # CTranslate2 has a config.json of its own
    model.generation_config.to_json_file(str(output / GENERATION_CONFIG))
    tokenizer.save_pretrained(output)


def vocabulary_of(config: VanillaConfig, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """All tokens in the order of their ids. Rows of the embedding that have no token get a name that no token has."""
    known = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    return [known.get(token_id, f"\0{token_id}") for token_id in range(config.vocab_size)]


@torch.no_grad()
def specification_of(
    model: VanillaForConditionalGeneration, vocabulary: Sequence[str], tokenizer: PreTrainedTokenizerFast
) -> Any:
    """CTranslate2's description of the model, with copies of its weights: quantising changes them in place."""
    from ctranslate2.specs import common_spec, transformer_spec

    config: Any = model.config
    refuse_what_is_not_exact(config)
    shared = {"num_heads": config.num_heads, "pre_norm": config.norm_first, "head_dim": max(config.d_kv, config.d_v)}
    shared["activation"] = common_spec.Activation[ACTIVATIONS[config.activation_function]]
    encoder = transformer_spec.TransformerEncoderSpec(config.encoder_layers, **shared)
    decoder = transformer_spec.TransformerDecoderSpec(config.decoder_layers, **shared)
    source = model.model.encoder.embed_tokens
    target = source if model.model.decoder.embed_tokens is None else model.model.decoder.embed_tokens
    fill_stack(encoder, encoder.embeddings[0], model.model.encoder, source, config)
    fill_stack(decoder, decoder.embeddings, model.model.decoder, target, config)
    decoder.projection.weight = copied(model.lm_head.weight)
    specification = transformer_spec.TransformerSpec(encoder, decoder)
    settings = specification.config
    settings.layer_norm_epsilon = config.layer_norm_eps
    settings.add_source_bos = settings.add_source_eos = False
    start = model.generation_config.decoder_start_token_id
    settings.decoder_start_token = vocabulary[config.decoder_start_token_id if start is None else start]
    for name in ("bos_token", "eos_token", "unk_token"):
        setattr(settings, name, getattr(tokenizer, name) or vocabulary[0])
    specification.register_source_vocabulary(list(vocabulary))
    specification.register_target_vocabulary(list(vocabulary))
    return specification


def refuse_what_is_not_exact(config: VanillaConfig) -> None:
    if config.activation_function not in ACTIVATIONS:
        raise InteropError(
            f"activation_function ({config.activation_function!r}) is not one that CTranslate2 computes: "
            f"{', '.join(sorted(ACTIVATIONS))}"
        )


def fill_stack(spec: Any, embeddings: Any, stack: nn.Module, tokens: nn.Embedding, config: Any) -> None:
    """An encoder or a decoder."""
    parts: Any = stack
    embeddings.weight = copied(tokens.weight)
    spec.scale_embeddings = True
    if config.position_embedding_type == "sinusoidal":
        table = VanillaSinusoidalPositions(config)(torch.arange(SINUSOIDS))
    else:
        table = parts.embed_positions.weight
    spec.position_encodings.encodings = copied(table)
    if config.norm_first:
        fill_norm(spec.layer_norm, parts.layer_norm)
    for layer, theirs in zip(parts.layers, spec.layer, strict=True):
        fill_attention(theirs.self_attention, layer.self_attn, config, is_self_attention=True)
        fill_norm(theirs.self_attention.layer_norm, layer.self_attn_sublayer.layer_norm)
        if hasattr(layer, "cross_attn"):
            fill_attention(theirs.attention, layer.cross_attn, config, is_self_attention=False)
            fill_norm(theirs.attention.layer_norm, layer.cross_attn_sublayer.layer_norm)
        fill_linear(theirs.ffn.linear_0, layer.feed_forward.fc1.weight, layer.feed_forward.fc1.bias)
        fill_linear(theirs.ffn.linear_1, layer.feed_forward.fc2.weight, layer.feed_forward.fc2.bias)
        fill_norm(theirs.ffn.layer_norm, layer.feed_forward_sublayer.layer_norm)


def fill_attention(spec: Any, attention: Any, config: Any, is_self_attention: bool) -> None:
    """
    CTranslate2 has one size for the heads of queries, keys and values: smaller ones are filled with zeros, which change
    no product. It would scale queries by that size, so it is told the scale.
    """
    number, size = config.num_heads, max(config.d_kv, config.d_v)
    query, key, value = (
        with_larger_heads(linear, number, size) for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    groups = [[query, key, value]] if is_self_attention else [[query], [key, value]]
    for linear, group in zip(spec.linear, groups, strict=False):
        fill_linear(linear, torch.cat([weight for weight, _ in group]), torch.cat([bias for _, bias in group]))
    output = attention.o_proj.weight.unflatten(1, (number, config.d_v))
    output = nn.functional.pad(output, (0, size - config.d_v)).flatten(1)
    fill_linear(spec.linear[-1], output, attention.o_proj.bias)
    if not config.d_kv == size == config.d_model // config.num_heads:
        import numpy as np

        spec.queries_scale = np.float32(config.d_kv**-0.5)


def with_larger_heads(linear: nn.Linear, number: int, size: int) -> tuple[Tensor, Tensor]:
    """Weight and bias of a projection, each head with zeros up to this size."""
    weight, bias = linear.weight.unflatten(0, (number, -1)), linear.bias.unflatten(0, (number, -1))
    more = size - bias.shape[1]
    return nn.functional.pad(weight, (0, 0, 0, more)).flatten(0, 1), nn.functional.pad(bias, (0, more)).flatten()


def fill_linear(spec: Any, weight: Tensor, bias: Tensor) -> None:
    spec.weight, spec.bias = copied(weight), copied(bias)


def fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = copied(norm.weight), copied(norm.bias)


def copied(weight: Tensor) -> Any:
    return weight.detach().float().contiguous().numpy().copy()
