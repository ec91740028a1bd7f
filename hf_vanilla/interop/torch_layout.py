"""Our weights by the names of `torch.nn.Transformer`, and back. It has queries, keys and values in one matrix."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from .errors import InteropError

CONFIG, WEIGHTS, CODE = "transformer.json", "weights.safetensors", "transformer.py"
SOURCE, TARGET, GENERATOR = "source_embedding.weight", "target_embedding.weight", "generator.weight"
POSITIONS = {
    "source_positions.weight": "model.encoder.embed_positions.weight",
    "target_positions.weight": "model.decoder.embed_positions.weight",
}
NORMS = {
    "encoder": {"norm1": "self_attn_sublayer", "norm2": "feed_forward_sublayer"},
    "decoder": {"norm1": "self_attn_sublayer", "norm2": "cross_attn_sublayer", "norm3": "feed_forward_sublayer"},
}
MODULES = {"linear1": "feed_forward.fc1", "linear2": "feed_forward.fc2"}
MODULES |= {"self_attn.out_proj": "self_attn.o_proj", "multihead_attn.out_proj": "cross_attn.o_proj"}
ATTENTIONS = {"self_attn": "self_attn", "multihead_attn": "cross_attn"}
LAYER = re.compile(r"transformer\.(encoder|decoder)\.layers\.(\d+)\.(.+)\.(weight|bias)$")
IN_PROJ = re.compile(
    r"transformer\.(encoder|decoder)\.layers\.(\d+)\.(self_attn|multihead_attn)\.in_proj_(weight|bias)$"
)


def ours(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All but the embeddings of tokens and the output projection, by our names."""
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if packed := IN_PROJ.match(name):
            stack, number, attention, kind = packed.groups()
            place = f"model.{stack}.layers.{number}.{ATTENTIONS[attention]}"
            if len(weight) % 3:
                raise InteropError(f"{name} has {len(weight)} rows, which are not those of three projections")
            found |= {f"{place}.{x}_proj.{kind}": part for x, part in zip("qkv", weight.chunk(3), strict=True)}
        else:
            found[our_name(name)] = weight
    return found


def our_name(name: str) -> str:
    if name in POSITIONS:
        return POSITIONS[name]
    if last := re.match(r"transformer\.(encoder|decoder)\.norm\.(weight|bias)$", name):
        return f"model.{last[1]}.layer_norm.{last[2]}"
    if layer := LAYER.match(name):
        stack, number, module, kind = layer.groups()
        if module in NORMS[stack]:
            return f"model.{stack}.layers.{number}.{NORMS[stack][module]}.layer_norm.{kind}"
        if module in MODULES:
            return f"model.{stack}.layers.{number}.{MODULES[module]}.{kind}"
    raise InteropError(
        f"{name} is no weight of torch.nn.Transformer, its embeddings, or its generator (output projection)"
    )


def theirs(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse: our weights, all of them, by their names."""
    found: dict[str, Tensor] = {}
    packed: dict[str, dict[str, Tensor]] = {}
    for name, weight in weights.items():
        if projection := re.match(
            r"model\.(\w+\.layers\.\d+)\.(self_attn|cross_attn)\.([qkv])_proj\.(weight|bias)$", name
        ):
            layer, attention, which, kind = projection.groups()
            theirs_of = {ours: theirs for theirs, ours in ATTENTIONS.items()}
            packed.setdefault(f"transformer.{layer}.{theirs_of[attention]}.in_proj_{kind}", {})[which] = weight
        else:
            found[their_name(name)] = weight
    return found | {name: torch.cat([parts[which] for which in "qkv"]) for name, parts in packed.items()}


def their_name(name: str) -> str:
    whole = {"model.encoder.embed_tokens.weight": SOURCE, "model.decoder.embed_tokens.weight": TARGET}
    whole |= {"lm_head.weight": GENERATOR} | {ours: theirs for theirs, ours in POSITIONS.items()}
    if name in whole:
        return whole[name]
    name = re.sub(r"^model\.", "transformer.", name)
    name = re.sub(r"^(transformer\.(?:encoder|decoder))\.layer_norm\.", r"\1.norm.", name)
    stack = name.split(".")[1]
    for theirs_, ours_ in NORMS[stack].items():
        name = name.replace(f".{ours_}.layer_norm.", f".{theirs_}.")
    for theirs_, ours_ in MODULES.items():
        name = name.replace(f".{ours_}.", f".{theirs_}.")
    return name
