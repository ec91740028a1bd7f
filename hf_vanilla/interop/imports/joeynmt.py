"""
JoeyNMT 2: a folder with config.yaml, a checkpoint (best.ckpt, or the file that is given), and the vocabularies.

Its sinusoids are ours. Its layer normalisations add 1e-6.
"""

import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from ..errors import InteropError
from .frame import Foreign
from .reading import checked, one_of, pickle_of, text_of, yaml_of
from .sentencepiece_model import read as read_pieces
from .sentencepiece_model import restricted, unigram
from .vocabularies import Vocabulary, assembled, characters, lowercased, merged, words

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "tanh": "tanh", "swish": "silu"}
SPECIALS = {"unk": ("<unk>", 0), "pad": ("<pad>", 1), "bos": ("<s>", 2), "eos": ("</s>", 3)}
LINEARS = {"k_layer": "k_proj", "v_layer": "v_proj", "q_layer": "q_proj", "output_layer": "o_proj"}
NAMES = (
    (r"^(encoder|decoder)\.layer_norm\.", r"model.\1.layer_norm."),
    (r"^(encoder|decoder)\.layers\.(\d+)\.", r"model.\1.layers.\2."),
    (r"\.(?:src_src|trg_trg)_att\.", r".self_attn."),
    (r"\.src_trg_att\.", r".cross_attn."),
    (r"(?<=_attn\.)(\w+_layer)\b", lambda found: LINEARS.get(found[1], found[1])),
    (r"(\.\d+)\.x?_?layer_norm\.", r"\1.self_attn_sublayer.layer_norm."),
    (r"(\.\d+)\.dec_layer_norm\.", r"\1.cross_attn_sublayer.layer_norm."),
    (r"\.feed_forward\.layer_norm\.", r".feed_forward_sublayer.layer_norm."),
    (r"\.feed_forward\.pwff_layer\.0\.", r".feed_forward.fc1."),
    (r"\.feed_forward\.pwff_layer\.3\.", r".feed_forward.fc2."),
)
SOURCE, TARGET, OUTPUT = "src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"
NOT_IN_LAYERS = {SOURCE, TARGET, OUTPUT, "encoder.pe.pe", "decoder.pe.pe"}


def read(checkpoint: Path, segmented: bool) -> Foreign:
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    file = one_of(folder, ("best.ckpt", "latest.ckpt")) if checkpoint.is_dir() else checkpoint
    where = folder / "config.yaml"
    config = yaml_of(where)
    model, data = _section(config, "model", where), _section(config, "data", where)
    stored = pickle_of(file).get("model_state")
    if not isinstance(stored, dict):
        raise InteropError(f"{file}: has no model_state: it is no checkpoint of JoeyNMT")
    weights = checked(stored, file)
    vocabulary = Vocabulary.of(*(_tokens(folder, data, side) for side in ("src", "trg")))
    specials = _specials(data, vocabulary, where)
    backend, number = _tokenizer(folder, data, vocabulary, segmented, where)
    tokenizer = assembled(backend, {f"{name}_token": token for name, (token, _) in specials.items()})
    for name in (SOURCE, TARGET, OUTPUT):
        if name not in weights:
            raise InteropError(f"{file}: has no {name}: it is no Transformer of JoeyNMT")
    return Foreign(
        *(_fields(model, specials, where), _renamed(weights)),
        *(weights[SOURCE], weights[TARGET], weights[OUTPUT]),
        *(tokenizer, number, specials["unk"][1]),
        scales_embeddings=_scales(model, where),
        source_ids=vocabulary.source,
        target_ids=vocabulary.target,
        generation=_search(config),
    )


def _section(config: dict[str, Any], name: str, where: Path) -> dict[str, Any]:
    found = config.get(name)
    if not isinstance(found, dict):
        raise InteropError(f"{where}: has no section {name}: it is no configuration of JoeyNMT 2")
    return found


def _fields(model: dict[str, Any], specials: dict[str, tuple[str, int]], where: Path) -> dict[str, Any]:
    encoder, decoder = _section(model, "encoder", where), _section(model, "decoder", where)
    for key in ("type", "num_heads", "hidden_size", "ff_size", "layer_norm"):
        if encoder.get(key) != decoder.get(key) or encoder.get(key) is None:
            why = "; where it is missing, JoeyNMT normalises in one way here and in another there" * (
                key == "layer_norm"
            )
            raise InteropError(
                f"{where}: model: {key} must be given for encoder and decoder, and be the same, not "
                f"{encoder.get(key)!r:.30} and {decoder.get(key)!r:.30}{why}"
            )
    activation = encoder.get("activation", "relu")
    for key, here, ours in (
        ("type", encoder["type"], ("transformer",)),
        ("layer_norm", encoder["layer_norm"], ("pre", "post")),
        ("activation", activation, tuple(ACTIVATIONS)),
        ("activation of the decoder", decoder.get("activation", "relu"), (activation,)),
        ("alpha", encoder.get("alpha", 1.0), (1.0,)),
        ("alpha of the decoder", decoder.get("alpha", 1.0), (1.0,)),
    ):
        if here not in ours:
            raise InteropError(
                f"{where}: model: {key} {here!r:.40} cannot be imported, only {', '.join(map(str, ours))}"
            )
    return {
        "d_model": encoder["hidden_size"],
        "encoder_layers": encoder.get("num_layers", 8),
        "decoder_layers": decoder.get("num_layers", 4),
        "num_heads": encoder["num_heads"],
        "d_ff": encoder["ff_size"],
        "activation_function": ACTIVATIONS[activation],
        "norm_first": encoder["layer_norm"] == "pre",
        "layer_norm_eps": 1e-6,
        "dropout": encoder.get("dropout", 0.0),
        "decoder_start_token_id": specials["bos"][1],
    } | {f"{name}_token_id": number for name, (_, number) in specials.items() if name != "unk"}


def _scales(model: dict[str, Any], where: Path) -> bool:
    scales = [bool(model[side].get("embeddings", {}).get("scale", False)) for side in ("encoder", "decoder")]
    if model.get("tied_embeddings", False):
        scales[1] = scales[0]
    if scales[0] != scales[1]:
        raise InteropError(f"{where}: model: embeddings: scale must be the same for encoder and decoder")
    return scales[0]


def _renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {}
    for name, weight in weights.items():
        if name in NOT_IN_LAYERS:
            continue
        for theirs, ours in NAMES:
            name = re.sub(theirs, ours, name)
        found[name] = weight
    return found


def _specials(data: dict[str, Any], vocabulary: Vocabulary, where: Path) -> dict[str, tuple[str, int]]:
    """Name and id of each special token."""
    given = data.get("special_symbols") or {}
    found = {}
    for name, (token, number) in SPECIALS.items():
        found[name] = given.get(f"{name}_token", token), given.get(f"{name}_id", number)
        for ids in (vocabulary.source, vocabulary.target):
            if found[name][1] >= len(ids) or vocabulary.tokens[ids[found[name][1]]] != found[name][0]:
                raise InteropError(
                    f"{where}: data: {found[name][0]!r} is not token {found[name][1]} of the vocabularies"
                )
    return found


def _tokens(folder: Path, data: dict[str, Any], side: str) -> list[str]:
    """As JoeyNMT reads them: its special symbols come first if the file does not have them."""
    named = data[side].get("voc_file") if isinstance(data.get(side), dict) else None
    file = one_of(folder, (f"{side}_vocab.txt", *([Path(named).name] if named else [])))
    given = data.get("special_symbols") or {}
    first = [given.get(f"{name}_token", token) for name, (token, _) in SPECIALS.items()]
    first += [token for token in [given.get("sep_token")] if token] + list(given.get("lang_tags") or [])
    return list(dict.fromkeys([*first, *text_of(file).splitlines()]))


def _tokenizer(
    folder: Path, data: dict[str, Any], vocabulary: Vocabulary, segmented: bool, where: Path
) -> tuple[Tokenizer, int]:
    """For the texts of the source; those of the target must be cut in the same way."""
    given = data.get("special_symbols") or {}
    specials = [given.get(f"{name}_token", token) for name, (token, _) in SPECIALS.items()]
    tokens, unknown = vocabulary.tokens, specials[0]
    if segmented:
        return words(tokens, unknown), len(tokens)
    source, target = (_section(data, side, where) for side in ("src", "trg"))
    _check_texts(data, source, target, where)
    settings = source.get("tokenizer_cfg") or {}
    backend, number = characters(tokens, unknown), len(tokens)
    if source["level"] == "word":
        backend = words(tokens, unknown)
    elif source["level"] == "bpe" and _kind(source) == "sentencepiece":
        pieces = restricted(read_pieces(folder / Path(settings.get("model_file", "sentencepiece.model")).name), tokens)
        backend, number = unigram(pieces, tokens, vocabulary.tokens.index(unknown), specials)
    elif source["level"] == "bpe":
        file = folder / Path(settings.get("codes", "codes")).name
        backend, number = merged(tokens, unknown, specials, text_of(file))
        if number > len(tokens):
            raise InteropError(
                f"{file}: has merges that lead to tokens outside of the vocabulary, which JoeyNMT takes apart again: "
                "import with --segmented"
            )
    return (lowercased(backend) if source.get("lowercase") else backend), number


def _check_texts(data: dict[str, Any], source: dict[str, Any], target: dict[str, Any], where: Path) -> None:
    keys = ("level", "lowercase", "normalize", "tokenizer_type", "tokenizer_cfg")
    for key in keys:
        here, there = source.get(key) or None, target.get(key) or None
        if here != there:
            raise InteropError(f"{where}: data: {key} is not the same for src and trg: import with --segmented")
    moses = (source.get("tokenizer_cfg") or {}).get("pretokenizer", "none") != "none"
    tags = bool((data.get("special_symbols") or {}).get("lang_tags"))
    for what, holds in (("normalize", source.get("normalize")), ("pretokenizer", moses), ("lang_tags", tags)):
        if holds:
            raise InteropError(
                f"{where}: data: {what} changes texts in a way that is not done here: import with --segmented"
            )
    if source.get("level") not in ("word", "char", "bpe"):
        raise InteropError(f"{where}: data: level {source.get('level')!r:.30} must be word, char or bpe")


def _kind(side: dict[str, Any]) -> str:
    return str(side.get("tokenizer_type", side.get("bpe_type", "sentencepiece")))


def _search(config: dict[str, Any]) -> dict[str, Any]:
    """The width of its beam search. Its length penalty is another function than those of `generate()`."""
    testing = config.get("testing")
    width = testing.get("beam_size") if isinstance(testing, dict) else None
    return {"num_beams": width} if isinstance(width, int) and width > 0 else {}
