"""
`torch.nn.Transformer` with embeddings and an output projection, in the layout that `export --to torch` writes.

It is a folder with transformer.json (what the weights do not say), weights.safetensors or weights.pt, and a tokenizer.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from ...data.existing_tokenizer import load_tokenizer
from ..errors import InteropError
from ..torch_layout import CONFIG, GENERATOR, SOURCE, TARGET, WEIGHTS, ours
from .frame import IDS, Foreign
from .reading import checked, json_of, one_of, pickle_of, safetensors_of

FIELDS = {
    "d_model": int,
    "num_heads": int,
    "d_ff": int,
    "encoder_layers": int,
    "decoder_layers": int,
    "norm_first": bool,
    "activation_function": str,
    "position_embedding_type": str,
    "layer_norm_eps": float,
    **dict.fromkeys(IDS, int),
}
OPTIONAL = {"max_position_embeddings": int, "scale_embedding": bool, "generation": dict}


def read(checkpoint: Path, segmented: bool) -> Foreign:
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    if segmented:
        raise InteropError("--segmented is for the toolkits whose texts are segmented by others, not for torch")
    fields = _fields(folder / CONFIG)
    scales, generation = fields.pop("scale_embedding", True), fields.pop("generation", {})
    file = one_of(folder, (WEIGHTS, "weights.pt"))
    weights = safetensors_of(file) if file.name == WEIGHTS else checked(pickle_of(file), file)
    tokenizer = load_tokenizer(folder)
    source = _taken(weights, SOURCE, file)
    target = weights.pop(TARGET, source)
    output = weights.pop(GENERATOR, target)
    bias = weights.pop("generator.bias", None)
    return Foreign(
        *(fields, ours(weights), source, target, output, tokenizer, max(len(tokenizer), len(source))),
        unknown=tokenizer.unk_token_id,
        bias=bias,
        scales_embeddings=scales,
        generation=generation,
    )


def _fields(file: Path) -> dict[str, Any]:
    found = json_of(file)
    for key in found.keys() - FIELDS.keys() - OPTIONAL.keys():
        raise InteropError(f"{file}: {key}: is no key of this file; its keys are {', '.join([*FIELDS, *OPTIONAL])}")
    for key, kind in (FIELDS | OPTIONAL).items():
        if key not in found:
            if key in FIELDS:
                raise InteropError(f"{file}: {key} is missing")
        elif type(found[key]) is not kind:
            raise InteropError(f"{file}: {key} ({found[key]!r:.40}) must be of type {kind.__name__}")
    return found


def _taken(weights: dict[str, Tensor], name: str, file: Path) -> Tensor:
    if name not in weights:
        raise InteropError(f"{file}: has no {name}")
    return weights.pop(name)
