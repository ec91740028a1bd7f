"""
MarianMT as transformers stores it, such as the models of OPUS-MT: config.json, the weights, vocab.json, and a model of
SentencePiece for each side.
"""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from torch import Tensor
from transformers import GenerationConfig, MarianConfig, PreTrainedTokenizerFast

from ...messages import say
from ...run_directory import GENERATION_CONFIG, WEIGHTS
from ..errors import InteropError
from ..stock_classes import our_name, permuted, sines_first
from .frame import IDS, Foreign
from .reading import checked, json_of, one_of, pickle_of, safetensors_of
from .sentencepiece_model import read as read_pieces
from .sentencepiece_model import unigram
from .vocabularies import assembled, words

VOCABULARY, SOURCE, TARGET = "vocab.json", "source.spm", "target.spm"
SPECIALS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
SHARED, POSITIONS = "model.shared.weight", "embed_positions.weight"
TABLES = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", SHARED, "lm_head.weight"}


def read(checkpoint: Path, segmented: bool) -> Foreign:
    config = json_of(checkpoint / "config.json")
    if config.get("model_type") != "marian":
        raise InteropError(f"{checkpoint / 'config.json'}: is of type {config.get('model_type')!r:.40}, not 'marian'")
    fields = _fields(config, checkpoint / "config.json")
    tokenizer, number, unknown = _tokenizer(checkpoint, segmented)
    weights = _weights(checkpoint)
    order = sines_first(fields["d_model"]).argsort()
    bias = weights.pop("final_logits_bias", None)
    ours = {
        our_name(name): permuted(name, weight, order)
        for name, weight in weights.items()
        if name not in TABLES and not name.endswith(POSITIONS)
    }
    source, target, output = (permuted("shared.weight", table, order) for table in _tables(weights, checkpoint))
    return Foreign(
        *(fields, ours, source, target, output, tokenizer, number, unknown),
        bias=None if bias is None or not bias.any() else bias.flatten(),
        scales_embeddings=bool(config.get("scale_embedding", False)),
        generation=_generation(checkpoint, config),
    )


def _fields(config: dict[str, Any], file: Path) -> dict[str, Any]:
    theirs = {name: getattr(MarianConfig, name) for name in ("d_model", "dropout") if hasattr(MarianConfig, name)}
    theirs = MarianConfig().to_dict() | theirs | config
    for name in ("attention_heads", "ffn_dim"):
        encoder, decoder = theirs[f"encoder_{name}"], theirs[f"decoder_{name}"]
        if encoder != decoder:
            raise InteropError(f"{file}: encoder_{name} ({encoder}) and decoder_{name} ({decoder}) must be the same")
    if not theirs.get("share_encoder_decoder_embeddings", True) or theirs.get("decoder_vocab_size") not in (
        None,
        theirs["vocab_size"],
    ):
        raise InteropError(
            f"{file}: source and target have vocabularies of their own (share_encoder_decoder_embeddings)"
        )
    same = ("d_model", "encoder_layers", "decoder_layers", "activation_function", "dropout", "attention_dropout")
    fields = {name: theirs[name] for name in (*same, "activation_dropout")}
    fields |= {"num_heads": theirs["encoder_attention_heads"], "d_ff": theirs["encoder_ffn_dim"], "norm_first": False}
    ids = {name: theirs.get(name) for name in IDS}
    return (
        fields | ids | {"bos_token_id": ids["bos_token_id"] if ids["bos_token_id"] is not None else ids["eos_token_id"]}
    )


def _weights(checkpoint: Path) -> dict[str, Tensor]:
    file = one_of(checkpoint, (WEIGHTS, "pytorch_model.bin"))
    return safetensors_of(file) if file.suffix == ".safetensors" else checked(pickle_of(file), file)


def _tables(weights: dict[str, Tensor], checkpoint: Path) -> tuple[Tensor, Tensor, Tensor]:
    """The embeddings and the output projection: where only one is stored, all are that one."""
    stored = [weights[name] for name in sorted(TABLES) if name in weights]
    if not stored:
        raise InteropError(f"{checkpoint}: its weights have no {SHARED}")
    shared = weights.get(SHARED, stored[0])
    names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    source, target, output = (weights.get(name, shared) for name in names)
    return source, target, output


def _tokenizer(checkpoint: Path, segmented: bool) -> tuple[PreTrainedTokenizerFast, int, int]:
    file = checkpoint / VOCABULARY
    ids = json_of(file)
    tokens = sorted(ids, key=lambda token: (not isinstance(ids[token], int), ids[token]))
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise InteropError(f"{file}: must give its {len(tokens):,} tokens the ids 0 to {len(tokens) - 1:,}")
    for token in SPECIALS.values():
        if token not in ids:
            raise InteropError(f"{file}: has no {token}")
    languages = [token for token in tokens if token.startswith(">>") and token.endswith("<<")]
    number = len(tokens)
    if segmented:
        backend: Tokenizer = words(tokens, SPECIALS["unk_token"])
    else:
        model = read_pieces(checkpoint / SOURCE)
        backend, number = unigram(model, tokens, ids["<unk>"], {*SPECIALS.values(), *languages})
        backend.add_tokens([AddedToken(language, normalized=False, special=False) for language in languages])
        _say_what_targets_are(checkpoint)
    return assembled(backend, SPECIALS), number, ids["<unk>"]


def _say_what_targets_are(checkpoint: Path) -> None:
    source, target = checkpoint / SOURCE, checkpoint / TARGET
    if target.is_file() and target.read_bytes() != source.read_bytes():
        say(
            f"{TARGET} is not {SOURCE}: translations are as MarianMT's, but given targets (to train, score, or "
            f"begin with) are cut by {SOURCE}: their tokens differ from those that the model was trained with"
        )


def _generation(checkpoint: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The keys of its generation config, or of the configuration that had them before there was one."""
    file = checkpoint / GENERATION_CONFIG
    found = json_of(file) if file.is_file() else config
    known = GenerationConfig().to_dict().keys() - {"transformers_version", "custom_generate"}
    kept = {key: value for key, value in found.items() if key in known and value is not None}
    return {key: value for key, value in kept.items() if not key.startswith(("_", "output_", "return_", "use_cache"))}
