"""
From what a toolkit saved to our model.

Each toolkit's file says in a `Foreign` what was found, in our names. Where the toolkit has an output bias, other tokens
for source and target, or another scale of embeddings, that is written into the matrices (output_layer.py): what is
imported has the same logits.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast

from ...models.configuration_vanilla import VanillaConfig
from ...models.modeling_vanilla import VanillaForConditionalGeneration
from ..errors import InteropError
from .output_layer import ABSENT, with_bias

ENCODER, DECODER, OUTPUT = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
IDS = ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id")


@dataclass
class Foreign:
    """
    Args:
        fields: Of our configuration, but `vocab_size` and `tie_word_embeddings`, which follow from the matrices.
        weights: All but the three matrices below, by our names.
        source: The embedding of the source.
        target: The embedding of the target.
        output: The output projection.
        bias: Of the output projection.
        scales_embeddings: Whether it multiplies embeddings by the square root of d_model, as the paper does.
        source_ids: The tokenizer's id for each row of `source`; the same if not given.
        target_ids: The same for `target` and `output`.
        number: How many tokens the tokenizer has.
        unknown: The id, there and here, of the token that stands for those that the model does not know.
        generation: Keys of the generation config.
    """

    fields: dict[str, Any]
    weights: dict[str, Tensor]
    source: Tensor
    target: Tensor
    output: Tensor
    tokenizer: PreTrainedTokenizerFast
    number: int
    unknown: int
    bias: Tensor | None = None
    scales_embeddings: bool = True
    source_ids: list[int] | None = None
    target_ids: list[int] | None = None
    generation: dict[str, Any] = field(default_factory=dict)


@torch.no_grad()
def assembled(found: Foreign) -> VanillaForConditionalGeneration:
    """The model, in the precision of the checkpoint. Nothing is allocated before all shapes are known to fit."""
    _check_layers(found)
    _check_matrices(found)
    weights = dict(found.weights)
    source, target, output = _matrices(found, weights)
    tied = all(torch.equal(source, matrix) for matrix in (target, output))
    weights |= {ENCODER: source, OUTPUT: source} if tied else {ENCODER: source, DECODER: target, OUTPUT: output}
    config = _config(found, tied)
    with torch.device("meta"):
        model = VanillaForConditionalGeneration(config)
    _check_shapes(model.state_dict(), weights)
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    model.generation_config = _generation(found, model.generation_config)
    return model.eval()


def _matrices(found: Foreign, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The three matrices with a row for each token of the tokenizer. May change the last layer normalisation."""
    source = _spread(found.source, found.source_ids, found)
    target = _spread(found.target, found.target_ids, found)
    if not found.scales_embeddings:
        source, target = (matrix / math.sqrt(matrix.shape[1]) for matrix in (source, target))
    ids = found.target_ids or list(range(len(found.output)))
    absent = torch.ones(found.number, dtype=torch.bool)
    absent[ids] = False
    if found.bias is None and not absent.any():
        return source, target, found.output[torch.tensor(ids).argsort()]
    output = torch.zeros(found.number, found.output.shape[1], dtype=found.output.dtype)
    output[ids] = found.output
    bias = torch.full((found.number,), ABSENT, dtype=torch.float64)
    bias[ids] = torch.zeros(len(ids), dtype=torch.float64) if found.bias is None else found.bias.double()
    layer_norm = last_layer_norm(found.fields)
    scale, offset = (_weight(weights, f"{layer_norm}.{name}") for name in ("weight", "bias"))
    output, weights[f"{layer_norm}.bias"] = with_bias(output, bias, scale, offset)
    return source, target, output


def last_layer_norm(fields: Mapping[str, Any]) -> str:
    """What gives the decoder's last states."""
    last = fields["decoder_layers"] - 1
    return (
        "model.decoder.layer_norm"
        if fields["norm_first"]
        else f"model.decoder.layers.{last}.feed_forward_sublayer.layer_norm"
    )


def _spread(matrix: Tensor, ids: list[int] | None, found: Foreign) -> Tensor:
    """Tokens that the model does not know have the row of the unknown token."""
    if ids is None and len(matrix) == found.number:
        return matrix
    if found.unknown >= len(matrix):
        raise InteropError(
            f"the tokenizer has {found.number:,} tokens, an embedding {len(matrix):,} rows, and none is of an unknown "
            "token, which the others would need: name one (unk_token) in the tokenizer"
        )
    spread = matrix[found.unknown].repeat(found.number, 1)
    spread[list(range(len(matrix))) if ids is None else ids] = matrix
    return spread


def _weight(weights: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in weights:
        raise InteropError(f"the checkpoint has nothing for our {name}")
    return weights[name]


def _check_layers(found: Foreign) -> None:
    """Before a model is built that has a billion."""
    for stack in ("encoder", "decoder"):
        pattern = re.compile(rf"model\.{stack}\.layers\.(\d+)\.")
        there = {layer[1] for layer in map(pattern.match, found.weights) if layer}
        if found.fields[f"{stack}_layers"] != len(there):
            said = found.fields[f"{stack}_layers"]
            raise InteropError(
                f"the configuration says {stack}_layers: {said!r:.30}, and the weights are of {len(there)}"
            )


def _check_matrices(found: Foreign) -> None:
    width = found.fields["d_model"]
    for name, matrix, ids in (
        ("embedding of the source", found.source, found.source_ids),
        ("embedding of the target", found.target, found.target_ids),
        ("output projection", found.output, found.target_ids),
    ):
        rows = found.number if ids is None else len(ids)
        if (
            matrix.dim() != 2
            or matrix.shape[1] != width
            or (len(matrix) > rows if ids is None else len(matrix) != rows)
        ):
            raise InteropError(
                f"the {name} has the shape {tuple(matrix.shape)}, which does not fit {rows:,} tokens and a width of "
                f"{width}: the files do not belong together"
            )
    if found.bias is not None and found.bias.shape != (len(found.output),):
        raise InteropError(f"the output bias has the shape {tuple(found.bias.shape)}, for {len(found.output):,} tokens")


def _config(found: Foreign, tied: bool) -> VanillaConfig:
    try:
        return VanillaConfig(vocab_size=found.number, tie_word_embeddings=tied, **found.fields)
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise InteropError(f"no such model can be: {str(error).strip().splitlines()[-1].strip()}") from None


def _check_shapes(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    for name in sorted(expected.keys() - weights.keys()):
        raise InteropError(f"the checkpoint has nothing for our {name}")
    for name in sorted(weights.keys() - expected.keys()):
        raise InteropError(f"the checkpoint has {name} (as we would call it), which our model has not")
    for name, weight in weights.items():
        if weight.shape != expected[name].shape:
            raise InteropError(f"{name} would have the shape {tuple(weight.shape)}, not {tuple(expected[name].shape)}")


def _generation(found: Foreign, before: GenerationConfig) -> GenerationConfig:
    """Beam search of width 5 with an ordinary length penalty, unless the checkpoint says otherwise."""
    ids = {name: found.fields[name] for name in IDS}
    keys = {"num_beams": 5, "max_length": 256} | found.generation | ids
    try:
        return GenerationConfig(
            **{key: value for key, value in before.to_diff_dict().items() if key not in keys}, **keys
        )
    except (ValueError, TypeError) as error:
        raise InteropError(f"the search that it asks for cannot be: {error}") from None
