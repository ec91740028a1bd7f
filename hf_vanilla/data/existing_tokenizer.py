"""
Makes a fast tokenizer that somebody has ready for training.

It is read from `tokenizer.json` and from the names of the special tokens beside it. Nothing else of its folder is read
and no code that came with it is run.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from ..run_directory import TOKENIZER, TOKENIZER_CONFIG
from .errors import InvalidDataError
from .saved_tokenizer import PreTrainedTokenizerFast
from .subword_dropout import Words
from .tokenizer import RESERVED, SPECIAL_TOKENS, TAG, Columns, Encoder, content_of_token

SETTINGS = TOKENIZER_CONFIG
OLDER_SETTINGS = "special_tokens_map.json"  # where older versions of transformers wrote the special tokens
FILES = (TOKENIZER, SETTINGS, OLDER_SETTINGS)
COLUMNS, PREFIXES = "columns", "prefixes"  # in the settings of our own tokenizers

# A file can be crafted so that the Rust library panics or crashes: that must not end the training, so a process of its
# own loads the file first.
TRIAL = """
import sys
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
tokenizer.post_processor = None
tokenizer.decode(tokenizer.encode("A text, 1 \\u00e4 \\u4e00 \\U0001f600").ids)
"""
MOST_SECONDS = 300  # for the trial: the largest tokenizers load in a few seconds

MAX_BYTES = 2**28  # of the file: the largest tokenizers have an eighth of it

TRIED_FOR_DROPOUT = 200  # texts


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """
    The tokenizer of a folder, with the special tokens that training needs.

    Its ids stay as they are. Special tokens that it does not have are added with new ids. Every text ends in its <eos>
    and has no other special token around it, because our models are trained so.
    """
    file = folder / TOKENIZER
    if not file.is_file():
        raise InvalidDataError(_no_fast_tokenizer(folder))
    settings = _settings(folder)
    refuse_crashes(file)
    backend = Tokenizer.from_file(str(file))
    _refuse_gaps(backend, file)
    backend.no_padding()
    backend.no_truncation()
    if backend.normalizer is None:
        backend.normalizer = normalizers.Sequence([])  # the same, and BPE-dropout can call it
    names = SPECIAL_TOKENS | _special_tokens(folder, settings)
    _split_when_written_out(backend, set(names.values()))
    tokenizer = _assembled(backend, names, {key: settings[key] for key in (COLUMNS, PREFIXES) if key in settings})
    try:
        Encoder(tokenizer)
    except (KeyError, TypeError):
        raise InvalidDataError(f"{folder / SETTINGS}: {COLUMNS}: {settings[COLUMNS]!r:.80} says no columns") from None
    return tokenizer


def with_tokens(
    tokenizer: PreTrainedTokenizerFast, columns: Columns, symbols: Sequence[str], prefixes: Sequence[str]
) -> PreTrainedTokenizerFast:
    """
    The same tokenizer with one more token for each symbol, and each prefix that is a tag, that it does not have.

    The ids of its tokens stay as they are.

    Args:
        columns: What the columns of the data are.
        symbols: As `symbols_in` finds them.
    """
    before = Columns.of(tokenizer) or Columns()
    if columns.target != before.target:
        raise InvalidDataError(
            f"the targets of the data are {_kind(columns.target)}, and those of the tokenizer {_kind(before.target)}, "
            "which it could not decode: change data.train, or train a tokenizer (without `from`)"
        )
    tags = [prefix for prefix in prefixes if TAG.fullmatch(prefix)]
    for tag in {*tokenizer.all_special_tokens, *RESERVED} & {*tags}:
        raise InvalidDataError(f"prefix {tag!r}: there is a special token of this name; choose another tag")
    backend = tokenizer.backend_tokenizer
    contents = [content_of_token(text, backend.model) for text in [*tags, *symbols] if text not in RESERVED]
    backend = _extended(backend, [content for content in contents if backend.token_to_id(content) is None])
    known = tokenizer.init_kwargs.get(PREFIXES, [])
    saved = {COLUMNS: asdict(columns), PREFIXES: list(dict.fromkeys([*known, *prefixes]))}
    return _assembled(backend, {key: getattr(tokenizer, key) for key in SPECIAL_TOKENS}, saved)


def _split_when_written_out(backend: Tokenizer, tokens: Iterable[str]) -> None:
    """
    Have special tokens that a text contains taken for text.

    The library can leave them alone, but some models have them among the pieces that text consists of, as Unigram
    models do: a space then makes two pieces of them.
    """
    backend.encode_special_tokens = True
    for token in sorted(tokens):
        if backend.token_to_id(token) in backend.encode(token, add_special_tokens=False).ids:
            split = normalizers.Replace(token, f"{token[0]} {token[1:]}")
            backend.normalizer = normalizers.Sequence([backend.normalizer, split])


def _assembled(backend: Tokenizer, names: dict[str, str], saved: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Special tokens that are written out in a text are split like any other text, and every text ends in <eos>."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, split_special_tokens=True, **names, **saved)
    eos = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", special_tokens=[(eos, tokenizer.eos_token_id)]
    )
    return tokenizer


def _kind(separator: str | None) -> str:
    return "text" if separator is None else f"symbols (as: words, separator: {separator!r})"


def _extended(backend: Tokenizer, contents: Sequence[str]) -> Tokenizer:
    """More tokens that no text becomes: as our own tokenizers have them, or else as special tokens."""
    state = json.loads(backend.to_str())
    vocab = state["model"]["vocab"]
    is_whole = isinstance(backend.model, models.BPE | models.WordLevel) and len(vocab) == backend.get_vocab_size()
    if is_whole:
        for content in contents:
            vocab.setdefault(content, len(vocab))
        return Tokenizer.from_str(json.dumps(state))
    backend = Tokenizer.from_str(json.dumps(state))
    backend.add_special_tokens([AddedToken(content, normalized=False, special=True) for content in contents])
    return backend


def number_of_tokens(folder: Path) -> int:
    """How many tokens the file has, before any is added."""
    return Tokenizer.from_file(str(folder / TOKENIZER)).get_vocab_size(with_added_tokens=True)


def refuse_dropout(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str], rate: float) -> None:
    """Raise an error if our BPE-dropout would segment texts into other tokens than the tokenizer does."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    model, alphabet = state["model"], pre_tokenizers.ByteLevel.alphabet()
    if model["type"] != "BPE" or not model["merges"] or not set(alphabet) <= model["vocab"].keys():
        raise InvalidDataError(
            f"tokenizer.dropout: {rate:g} needs byte-pair encoding over bytes, and this tokenizer has a model of type "
            f"{model['type']} {'over characters' if model['type'] == 'BPE' else 'without merges'}: set "
            "tokenizer.dropout to 0, or train a tokenizer (tokenizer.kind: bpe)"
        )
    words = Words(tokenizer, rate=0.0)  # a merge is never dropped
    for text in islice(texts, TRIED_FOR_DROPOUT):
        usual = tokenizer(text, add_special_tokens=False)["input_ids"]
        try:
            ours = [number for word in words.words(text) for number in words.segmentations(word, 1)[0]]
        except KeyError:
            ours = []
        if ours != usual:
            raise InvalidDataError(
                f"tokenizer.dropout: {rate:g} is not possible with this tokenizer: {text!r:.80} would have other "
                "tokens even if nothing were dropped; set tokenizer.dropout to 0, or train a tokenizer "
                "(tokenizer.kind: bpe)"
            )


def _no_fast_tokenizer(folder: Path) -> str:
    slow = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "vocab.txt", "vocab.json")
    found = ", ".join(name for name in slow if (folder / name).exists())
    return (
        f"{folder} has no {TOKENIZER}{f' (only {found})' if found else ''}, and only fast tokenizers can be used: "
        "convert it once with AutoTokenizer.from_pretrained(...).save_pretrained(DIRECTORY), and name DIRECTORY"
    )


def _settings(folder: Path) -> dict[str, Any]:
    settings = _read_json(folder / SETTINGS)
    if "auto_map" in settings:
        raise InvalidDataError(
            f"{folder / SETTINGS}: the tokenizer is code that came with it (auto_map), which is never run: name a "
            "tokenizer that is a tokenizer.json alone"
        )
    return settings


def _special_tokens(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """The special tokens that it names, by our keys."""
    older = _read_json(folder / OLDER_SETTINGS)
    found = {}
    for key in SPECIAL_TOKENS:
        token = settings.get(key) or older.get(key)
        token = token.get("content") if isinstance(token, dict) else token
        if token:
            if not isinstance(token, str):
                raise InvalidDataError(f"{folder / SETTINGS}: {key}: {token!r:.40} is not a token")
            found[key] = token
    return found


def _read_json(file: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file."""
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidDataError(f"{file}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise InvalidDataError(f"{file}: must be a JSON object, not {type(found).__name__}")
    return found


def refuse_crashes(file: Path) -> None:
    """Raise an error if loading and using the file ends a process, as crafted ones do. It is tried in another."""
    if file.stat().st_size > MAX_BYTES:
        raise InvalidDataError(f"{file}: has {file.stat().st_size:,} bytes, more than the limit of {MAX_BYTES:,}")
    command = [sys.executable, "-I", "-c", TRIAL, str(file)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=MOST_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise InvalidDataError(f"{file}: is no usable tokenizer: it did not load in {MOST_SECONDS} seconds") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1].partition(": ")[2] if said else f"loading it ends a process with code {done.returncode}"
        raise InvalidDataError(f"{file}: is no usable tokenizer: {why:.200}; take another, or save it again")


def _refuse_gaps(backend: Tokenizer, file: Path) -> None:
    """Each id is a row of the embedding, so there must be neither gaps nor ids that two tokens share."""
    tokens = sorted(backend.get_vocab(with_added_tokens=True).items(), key=lambda token: token[1])
    for expected, (token, found) in enumerate(tokens):
        if found != expected:
            raise InvalidDataError(
                f"{file}: its {len(tokens):,} tokens must have the ids 0 to {len(tokens) - 1:,}, and {token!r:.40} has "
                f"the id {found:,} where {expected:,} would be next: take another tokenizer"
            )
