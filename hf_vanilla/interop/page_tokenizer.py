"""A tokenizer in the form that tokenizer.mjs of the page reads, or a refusal: it knows the kinds that we train."""

import json
from typing import Any

from transformers import PreTrainedTokenizerFast

from ..data.tokenizer import RESERVED, Columns, TokenizerKind, train_tokenizer
from .errors import InteropError

KINDS: tuple[TokenizerKind, ...] = ("bpe", "character", "word")
PARTS = ("normalizer", "pre_tokenizer", "decoder")


def for_page(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    columns = Columns.of(tokenizer) or Columns()
    kind, lowercase = kind_of(tokenizer, columns)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    vocab = state["model"]["vocab"]
    normalizers = state["normalizer"]["normalizers"]
    first = {"bpe": [" "], "character": [], "word": [" "]}[kind]
    return {
        "kind": kind,
        "lowercase": lowercase,
        "tokens": sorted(vocab, key=vocab.__getitem__),
        "merges": [vocab[part] for merge in state["model"].get("merges", []) for part in merge],
        "split": [[each["pattern"]["String"], each["content"]] for each in normalizers if each["type"] == "Replace"],
        "without_first": [*first, columns.target] if columns.target is not None else first,
        "columns": {"source": list(columns.source), "target": columns.target},
        "prefixes": tokenizer.init_kwargs.get("prefixes", []),
        "reserved": sorted(RESERVED),
        "special_ids": tokenizer.all_special_ids,
        "eos": tokenizer.eos_token_id,
        "sep": tokenizer.sep_token_id,
        "unk": tokenizer.unk_token_id,
    }


def kind_of(tokenizer: PreTrainedTokenizerFast, columns: Columns) -> tuple[TokenizerKind, bool]:
    """Which of our tokenizers it is, and whether it lower-cases. All but its vocabulary must be the same."""
    found = outline_of(tokenizer)
    for kind in KINDS:
        for lowercase in (False, True):
            if found == outline_of(train_tokenizer([], kind, lowercase=lowercase, columns=columns)):
                return kind, lowercase
    raise InteropError(
        f"its tokenizer is none that this package trains ({', '.join(KINDS)}), and the page knows no others: train the "
        "model with one of them, or use another format"
    )


def outline_of(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """All that decides about ids and text, but for what is in the vocabulary."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    model = {name: value for name, value in state["model"].items() if name not in ("vocab", "merges")}
    special = [(token["id"], token["content"], token["special"]) for token in state["added_tokens"]]
    names = [tokenizer.eos_token, tokenizer.sep_token, tokenizer.unk_token, tokenizer.pad_token, tokenizer.bos_token]
    return {part: state[part] for part in PARTS} | {
        "model": model,
        "special": special,
        "names": names,
        "splits_special": tokenizer.backend_tokenizer.encode_special_tokens,
    }
