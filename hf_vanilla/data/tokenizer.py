"""
Trains a fast tokenizer (byte-pair encoding for both sides together, characters, or words), and encodes columns with it.

A column is text, which the tokenizer cuts into tokens, or symbols, such as the features "V;PST;SG" or the phonemes
"AH B EY T". A symbol is one token, which stands for the separator and the symbol: ";V", " AH". These tokens, and tags
like "<2de>", are in the vocabulary without merges that lead to them. So text never becomes one of them, whatever is
written in it: only `Encoder` looks them up.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from .corpus import Corpus, Pair
from .errors import InvalidDataError
from .saved_tokenizer import PreTrainedTokenizerFast

TokenizerKind = Literal["bpe", "character", "word"]

# The ids are those that VanillaConfig defaults to.
SPECIAL_TOKENS = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "<sep>",
}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
RESERVED = frozenset([*SPECIAL_TOKENS.values(), *BYTES])
TAG = re.compile(r"<[^<>\s]+>")
"""A prefix like this is one token. Any other prefix is text."""
MARK = " "
"""Begins the names of looked-up tokens among byte pairs and words, because none of these has a space in its name."""

Piece = str | list[int]
"""A part of a text: text that the tokenizer cuts into tokens, or the ids of a symbol, a tag or a special token."""


@dataclass(frozen=True)
class Columns:
    """For each column of a source, and for the target: None if it is text, or the separator of its symbols."""

    source: tuple[str | None, ...] = (None,)
    target: str | None = None

    @classmethod
    def in_corpus(cls, corpus: Corpus) -> "Columns":
        symbols = [what.separator if what else None for what in (*corpus.source_symbols, corpus.target_symbols)]
        return cls(tuple(symbols[:-1]), symbols[-1])

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> "Columns | None":
        """What is saved in tokenizer_config.json. None, if an earlier version or others made the tokenizer."""
        saved = tokenizer.init_kwargs.get("columns")
        return cls(tuple(saved["source"]), saved["target"]) if saved else None

    def separators(self, number: int) -> list[str | None]:
        """Of the first `number` columns of a source. A line may have more or fewer columns than the model knows."""
        return [*self.source, *repeat(None, number)][:number]


def train_tokenizer(
    texts: Iterable[str],
    kind: TokenizerKind = "bpe",
    vocab_size: int = 8000,
    lowercase: bool = False,
    columns: Columns | None = None,
    symbols: Sequence[str] = (),
    prefixes: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """
    Train a tokenizer on `texts`, sources and targets together.

    - "bpe": byte-pair encoding over bytes.
    - "character": every character of the texts is a token; others are written as bytes.
    - "word": the most frequent words, separated by white space; others are unknown.

    With all but "word" no text is unknown, and decoding gives back the text, in NFC and lower-cased if asked for. A
    special token that is written out in a text is taken for ordinary text.

    Args:
        vocab_size: The number of tokens, those of symbols and tags included. For "character" it has no effect.
        columns: Which columns have symbols. It is saved with the tokenizer, so that `Encoder` knows it.
        symbols: What is one token each, as `symbols_in` finds it. Other symbols are spelt; for "word" they are unknown.
        prefixes: All that the corpora have. Tags among them are one token each.
    """
    tags = [prefix for prefix in prefixes if TAG.fullmatch(prefix)]
    for tag in RESERVED.intersection(tags):
        raise InvalidDataError(f"prefix {tag!r}: there is a special token of this name; choose another tag")
    looked_up = [*tags, *symbols]
    target = columns.target if columns else None
    train = {"bpe": _byte_pairs, "character": _characters, "word": _words}[kind]
    tokenizer = _with_tokens(train(texts, vocab_size - len(looked_up), lowercase, target, symbols), looked_up)
    eos = SPECIAL_TOKENS["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", special_tokens=[(eos, tokenizer.token_to_id(eos))]
    )
    saved: dict[str, Any] = {"columns": asdict(columns)} if columns else {}
    if prefixes:
        saved["prefixes"] = list(prefixes)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, split_special_tokens=True, **SPECIAL_TOKENS, **saved)


def symbols_in(pairs: Iterable[Pair], columns: Columns) -> list[str]:
    """All symbols in the columns that have symbols, each with its separator in front, the most frequent first."""
    counts: Counter[str] = Counter()
    separators = *columns.source, columns.target
    if any(separators):
        for pair in pairs:
            for text, separator in zip((*pair.source, pair.target), separators, strict=True):
                if separator is not None:
                    counts.update(cut(text, separator))
    return sorted(counts, key=lambda symbol: (-counts[symbol], symbol))


def texts_in(pairs: Iterable[Pair], columns: Columns) -> Iterator[str]:
    """All text that is spelt: columns without symbols, and prefixes that are no tags, as `Encoder` puts them."""
    for pair in pairs:
        prefix = "" if TAG.fullmatch(pair.prefix) else pair.prefix
        for number, (text, separator) in enumerate(zip(pair.source, columns.source, strict=True)):
            before = "" if number else prefix
            if separator is None or before:
                yield before + (text if separator is None else "")
        if columns.target is None:
            yield pair.target


def cut(text: str, separator: str) -> list[str]:
    """The symbols of a text in NFC, each with the separator in front, also the first."""
    separator = unicodedata.normalize("NFC", separator)
    return [separator + symbol for symbol in unicodedata.normalize("NFC", text).split(separator)]


def content_of_token(looked_up: str, model: models.Model) -> str:
    """How a vocabulary names the token of a symbol, with its separator, or of a tag, such that no text becomes it."""
    match model:
        case models.WordLevel():
            return MARK + looked_up
        case models.BPE() if not model.byte_fallback:  # byte-level: a character for each byte
            byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            return MARK + "".join(characters for characters, _ in byte_level.pre_tokenize_str(looked_up))
        case _:  # characters, which are never merged
            return looked_up


def _with_tokens(tokenizer: Tokenizer, looked_up: Iterable[str]) -> Tokenizer:
    """The same with more tokens at the end of the vocabulary. (Symbols that look like special tokens stay spelt.)"""
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    for text in looked_up:
        vocab.setdefault(content_of_token(text, tokenizer.model), len(vocab))
    return Tokenizer.from_str(json.dumps(state))


def _normalizer(lowercase: bool, *more: normalizers.Normalizer) -> normalizers.Normalizer:
    return normalizers.Sequence([normalizers.NFC(), *([normalizers.Lowercase()] if lowercase else []), *more])


def _without_first(*beginnings: str) -> decoders.Decoder:
    """Takes away what stands in front of every text, or of its first symbol."""
    either = "|".join(re.escape(unicodedata.normalize("NFC", beginning)) for beginning in beginnings)
    return decoders.Replace(Regex(rf"\A(?:{either})"), "")


def _byte_pairs(
    texts: Iterable[str], vocab_size: int, lowercase: bool, target: str | None, symbols: Sequence[str]
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    # A space in front of every text, so that a word has the same tokens wherever it stands.
    tokenizer.normalizer = _normalizer(lowercase, normalizers.Prepend(" "))
    # And each digit by itself, so that numbers are spelt alike.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(MARK, ""),
            decoders.ByteLevel(),
            decoders.Strip(" ", left=1, right=0) if target is None else _without_first(" ", target),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=max(0, vocab_size),
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _characters(
    texts: Iterable[str], vocab_size: int, lowercase: bool, target: str | None, symbols: Sequence[str]
) -> Tokenizer:
    normalizer = _normalizer(lowercase)
    alphabet = {character for text in texts for character in normalizer.normalize_str(text)}.union(*symbols)
    vocab = {token: index for index, token in enumerate([*SPECIAL_TOKENS.values(), *BYTES, *sorted(alphabet)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.normalizer = normalizer
    text = [decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(text if target is None else [*text, _without_first(target)])
    return tokenizer


def _words(
    texts: Iterable[str], vocab_size: int, lowercase: bool, target: str | None, symbols: Sequence[str]
) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIAL_TOKENS["unk_token"]))
    # A word that looks like a special token would become one: a space makes two words of it.
    special = [normalizers.Replace(token, f"{token[0]} {token[1:]}") for token in SPECIAL_TOKENS.values()]
    tokenizer.normalizer = _normalizer(lowercase, *special)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if target is not None:  # else what the library does is right: a space between tokens
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace(Regex(rf"\A(?!{MARK})"), 2 * MARK),  # a space and a mark in front of words
                decoders.Replace(Regex(rf"\A{MARK}"), ""),
                decoders.Fuse(),
                _without_first(" ", target),
            ]
        )
    trainer = trainers.WordLevelTrainer(
        vocab_size=max(len(SPECIAL_TOKENS), vocab_size),
        special_tokens=list(SPECIAL_TOKENS.values()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Encoder:
    """
    Text to ids: parts of a source are joined by the separator token, and every text ends in <eos>.

    Which columns have symbols, and what the prefixes of the training were, is saved with the tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer
        self.columns = Columns.of(tokenizer) or Columns()
        self.prefixes: list[str] = tokenizer.init_kwargs.get("prefixes", [])

    def sources(self, texts: Sequence[Sequence[str]], prefix: str | Sequence[str] = "") -> list[list[int]]:
        """
        The ids of sources in one or several parts.

        Args:
            prefix: Of all sources, or one for each. A tag is one token; another prefix is text before the first part.
        """
        prefixes = repeat(prefix, len(texts)) if isinstance(prefix, str) else prefix
        return self._ids([list(self.source_pieces(*source)) for source in zip(texts, prefixes, strict=True)])

    def targets(self, texts: Sequence[str]) -> list[list[int]]:
        return self._ids([list(self.target_pieces(text)) for text in texts])

    def source_pieces(self, parts: Sequence[str], prefix: str = "") -> Iterator[Piece]:
        """What a source consists of, <eos> included."""
        if TAG.fullmatch(prefix):
            yield [self.tag(prefix)]
            prefix = ""
        for number, (part, separator) in enumerate(zip(parts, self.columns.separators(len(parts)), strict=True)):
            if number:
                yield [self.tokenizer.sep_token_id]
            yield from self._column(part, separator, "" if number else prefix)
        yield [self.tokenizer.eos_token_id]

    def target_pieces(self, text: str) -> Iterator[Piece]:
        """What a target consists of, <eos> included."""
        yield from self._column(text, self.columns.target)
        yield [self.tokenizer.eos_token_id]

    def tag(self, tag: str) -> int:
        """The token of a prefix like <2de>."""
        number = self._looked_up(tag)
        if number is None:
            known = ", ".join(map(repr, self.prefixes)) or "none"
            raise InvalidDataError(
                f"prefix {tag!r}: the model has no such tag; the prefixes that it was trained with: {known}"
            )
        return number

    def _column(self, text: str, separator: str | None, prefix: str = "") -> Iterator[Piece]:
        if separator is None:
            yield prefix + text
            return
        if prefix:
            yield prefix
        for symbol in cut(text, separator):
            number = self._looked_up(symbol)
            yield self._spelt(symbol) if number is None else [number]

    def _looked_up(self, text: str) -> int | None:
        if text in RESERVED:
            return None
        backend = self.tokenizer.backend_tokenizer
        return backend.token_to_id(content_of_token(text, backend.model))

    def _spelt(self, symbol: str) -> list[int]:
        """A symbol that has no token of its own, neither lower-cased nor with a space in front as text has it."""
        backend = self.tokenizer.backend_tokenizer
        if isinstance(backend.model, models.WordLevel):
            return [self.tokenizer.unk_token_id]
        splitter = backend.pre_tokenizer
        words = [word for word, _ in splitter.pre_tokenize_str(symbol)] if splitter else [symbol]
        return [token.id for word in words for token in backend.model.tokenize(word)]

    def _ids(self, texts: Sequence[Sequence[Piece]]) -> list[list[int]]:
        """The tokenizer gets the pieces of all texts at once, which is much faster than one after the other."""
        spelt = [piece for pieces in texts for piece in pieces if isinstance(piece, str)]
        ids = iter(self._tokenized(spelt))
        return [
            list(chain.from_iterable(next(ids) if isinstance(piece, str) else piece for piece in pieces))
            for pieces in texts
        ]

    def _tokenized(self, texts: list[str]) -> list[list[int]]:
        if not texts:  # transformers' tokenizers fail on an empty list
            return []
        return self.tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
