"""
fairseq's `transformer`: a checkpoint (checkpoint_best.pt, or the file that is given) with the dictionaries beside it.

Its sinusoids are tensor2tensor's, not the paper's: they become learned positions that have their values. Old
checkpoints hold an argparse.Namespace, the one class beside tensors that is let in.
"""

import argparse
import math
import re
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from ..errors import InteropError
from ..stock_classes import our_name
from .frame import Foreign
from .reading import checked, one_of, pickle_of, text_of
from .sentencepiece_model import SPACE, unigram
from .sentencepiece_model import read as read_pieces
from .vocabularies import CONTINUES, Vocabulary, assembled, characters, merged, words

SPECIALS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
BOS, PAD, EOS, UNKNOWN = range(4)
FIRST_POSITION = PAD + 1
MAX_TABLE = 2**26  # numbers
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_fast": "gelu_new", "gelu_accurate": "gelu_new", "swish": "silu"}
ACTIVATIONS |= {"tanh": "tanh", "linear": "linear"}
REFUSED = (
    *("layernorm_embedding", "adaptive_softmax_cutoff", "adaptive_input", "no_token_positional_embeddings"),
    *("cross_self_attention", "no_cross_attention", "no_decoder_final_norm", "scale_attn", "scale_fc", "scale_heads"),
    *("scale_resids", "char_inputs", "alternate_decoder_layers"),
)
IGNORED = re.compile(r"(\bversion|_float_tensor|^encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias))$")
"""What version 0.12 saves besides: copies of weights, which it overwrites with the weights when it loads them."""
TABLES = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"}
PIECES = ("sentencepiece.bpe.model", "spm.model", "sentencepiece.model", "bpe.model")
CODES = ("bpecodes", "codes", "code", "bpe.codes")


def read(checkpoint: Path, segmented: bool) -> Foreign:
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    file = (
        one_of(folder, ("checkpoint_best.pt", "checkpoint_last.pt", "model.pt")) if checkpoint.is_dir() else checkpoint
    )
    stored = pickle_of(file, [argparse.Namespace])
    if not isinstance(stored.get("model"), dict):
        raise InteropError(f"{file}: has no model: it is no checkpoint of fairseq")
    model = {name: weight for name, weight in stored["model"].items() if not IGNORED.search(name)}
    weights = checked(model, file)
    options = _options(stored, file)
    vocabulary = Vocabulary.of(*_dictionaries(folder, options))
    backend, number = _tokenizer(folder, vocabulary.tokens, segmented)
    fields = _fields(options, file)
    source, target, output = _tables(weights, file)
    ours = {f"model.{our_name(name)}": weight for name, weight in weights.items() if name not in TABLES}
    for stack in ("encoder", "decoder"):
        ours[f"model.{stack}.embed_positions.weight"] = _positions(options, fields, stack, weights, file)
    return Foreign(
        *(fields, ours, source, target, output, assembled(backend, SPECIALS), number, UNKNOWN),
        scales_embeddings=not options.get("no_scale_embedding", False),
        source_ids=vocabulary.source,
        target_ids=vocabulary.target,
    )


def _options(stored: dict[str, Any], file: Path) -> dict[str, Any]:
    """What the model was built with: of version 0.10.2 or later in `cfg`, earlier in `args`."""
    configuration = stored.get("cfg")
    found = configuration.get("model") if isinstance(configuration, dict) else stored.get("args")
    if isinstance(found, argparse.Namespace):
        found = vars(found)
    if not isinstance(found, dict):
        raise InteropError(f"{file}: does not say what the model was built with (cfg or args)")
    task = configuration.get("task") if isinstance(configuration, dict) else None
    languages = vars(task) if isinstance(task, argparse.Namespace) else task
    languages = languages if isinstance(languages, dict) else {}
    named = {key: languages[key] for key in ("source_lang", "target_lang") if languages.get(key)}
    flat = {f"{stack}_{key}": value for stack in ("encoder", "decoder") for key, value in _nested(found, stack).items()}
    return flat | {key: value for key, value in found.items() if key not in ("encoder", "decoder")} | named


def _nested(options: dict[str, Any], stack: str) -> dict[str, Any]:
    found = options.get(stack)
    return found if isinstance(found, dict) else {}


def _fields(options: dict[str, Any], file: Path) -> dict[str, Any]:
    for key in REFUSED:
        if options.get(key):
            raise InteropError(f"{file}: {key} ({options[key]!r:.40}) is nothing that our model has")
    defaults = {"embed_dim": 512, "ffn_embed_dim": 2048, "attention_heads": 8, "normalize_before": False}
    defaults |= {"learned_pos": False}
    sizes: dict[str, Any] = {}
    for key, default in defaults.items():
        encoder, decoder = (options.get(f"{stack}_{key}", default) for stack in ("encoder", "decoder"))
        if encoder != decoder:
            raise InteropError(f"{file}: encoder_{key} ({encoder}) and decoder_{key} ({decoder}) must be the same")
        sizes[key] = encoder
    activation = options.get("activation_fn", "relu")
    if activation not in ACTIVATIONS:
        raise InteropError(f"{file}: activation_fn ({activation!r:.40}) must be one of {', '.join(ACTIVATIONS)}")
    for stack in ("encoder", "decoder"):
        for key in ("input_dim", "output_dim"):
            if options.get(f"{stack}_{key}", sizes["embed_dim"]) != sizes["embed_dim"]:
                raise InteropError(f"{file}: {stack}_{key} must be {stack}_embed_dim ({sizes['embed_dim']})")
    rates = ("dropout", "attention_dropout", "activation_dropout")
    return {
        "d_model": sizes["embed_dim"],
        "encoder_layers": options.get("encoder_layers", 6),
        "decoder_layers": options.get("decoder_layers", 6),
        "num_heads": sizes["attention_heads"],
        "d_ff": sizes["ffn_embed_dim"],
        "activation_function": ACTIVATIONS[activation],
        "norm_first": bool(sizes["normalize_before"]),
        "position_embedding_type": "learned",
        "max_position_embeddings": min(options.get(f"max_{side}_positions") or 1024 for side in ("source", "target")),
        **{rate: options.get(rate) or 0.0 for rate in rates},
        "bos_token_id": BOS,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "decoder_start_token_id": EOS,
    }


def _positions(
    options: dict[str, Any], fields: dict[str, Any], stack: str, weights: dict[str, Tensor], file: Path
) -> Tensor:
    number, width = fields["max_position_embeddings"], fields["d_model"]
    if not options.get(f"{stack}_learned_pos", False):
        if number * width > MAX_TABLE:
            raise InteropError(f"{file}: {number:,} positions of width {width:,} are too many")
        return sinusoids(number, width)
    table = weights.get(f"{stack}.embed_positions.weight")
    if table is None or len(table) < FIRST_POSITION + number:
        raise InteropError(f"{file}: {stack}.embed_positions.weight must have {FIRST_POSITION + number:,} rows")
    return table[FIRST_POSITION : FIRST_POSITION + number].clone()


def sinusoids(number: int, width: int) -> Tensor:
    """Those of tensor2tensor: all sines, then all cosines, and the last frequency is 1 / 10000."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float32) * -(math.log(10_000) / (half - 1)))
    angles = torch.arange(FIRST_POSITION, FIRST_POSITION + number, dtype=torch.float32)[:, None] * frequencies
    table = torch.cat([angles.sin(), angles.cos()], dim=1)
    return torch.nn.functional.pad(table, (0, width - 2 * half))


def _tables(weights: dict[str, Tensor], file: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Where the output projection is missing, as in versions before 0.9, it is called embed_out or is the embedding."""
    names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    for name in names:
        if name not in weights:
            raise InteropError(f"{file}: has no {name}: it is no Transformer of fairseq")
    source, target = (weights[name] for name in names)
    output = weights.pop("decoder.embed_out", None)
    return source, target, weights.get("decoder.output_projection.weight", target if output is None else output)


def _dictionaries(folder: Path, options: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Of the languages that the checkpoint names, or the two that there are."""
    files = sorted(folder.glob("dict.*.txt"))
    sides = [options.get("source_lang"), options.get("target_lang")]
    if all(isinstance(side, str) for side in sides):
        source, target = (one_of(folder, [f"dict.{Path(str(side)).name}.txt"]) for side in sides)
    elif len(files) == 2 and files[0].read_bytes() == files[1].read_bytes():
        source, target = files
    else:
        raise InteropError(
            f"{folder}: the checkpoint does not name its languages, and there are {len(files)} files dict.*.txt, which "
            "must be two that are the same"
        )
    return _tokens(source), _tokens(target)


def _tokens(file: Path) -> list[str]:
    found = list(SPECIALS.values())
    for line in text_of(file).split("\n"):
        fields = line.rstrip().removesuffix(" #fairseq:overwrite").rsplit(" ", 1)
        if len(fields) == 2 and fields[1].isdecimal():
            found.append(fields[0])
        elif line.strip():
            raise InteropError(f"{file}: {line!r:.60} must be a token and a number")
    return found


def _tokenizer(folder: Path, tokens: list[str], segmented: bool) -> tuple[Tokenizer, int]:
    unknown, specials = SPECIALS["unk_token"], list(SPECIALS.values())
    own = tokens[len(specials) :]
    if segmented:
        return words(tokens, unknown), len(tokens)
    if any(token.endswith(CONTINUES) for token in own):
        return merged(tokens, unknown, specials, text_of(_file_of(folder, CODES, "the merges of subword-nmt")))
    if SPACE in own and all(len(token) == 1 or token.startswith("madeupword") for token in own):
        return characters(tokens, unknown), len(tokens)
    if any(token.startswith(SPACE) for token in own):
        pieces = read_pieces(_file_of(folder, PIECES, "the model of SentencePiece"))
        return unigram(pieces, tokens, UNKNOWN, specials)
    return words(tokens, unknown), len(tokens)


def _file_of(folder: Path, names: tuple[str, ...], what: str) -> Path:
    try:
        return one_of(folder, names)
    except InteropError:
        raise InteropError(
            f"{folder}: the dictionaries have pieces of words, and {what} is missing: put it there as {names[0]}, or "
            "import with --segmented and give the model segmented texts"
        ) from None
