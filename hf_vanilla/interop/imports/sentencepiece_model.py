"""
A model of SentencePiece as a fast tokenizer, with the ids of another vocabulary.

Its file is a message of protocol buffers; of these little is needed, so that it is read here, without the packages.
"""

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ..errors import InteropError

NORMAL, UNKNOWN, CONTROL, UNUSED = 1, 2, 3, 5
UNIGRAM = 1
SPACE = "▁"
MARK = " "
"""Begins the names of tokens that no text becomes: a text has no space any more where the model looks for tokens."""


@dataclass
class SentencePieces:
    """
    Args:
        pieces: Score and type of each piece.
        model_type: Of its trainer; only "unigram" is known here.
        charsmap: The compiled rules of its normalisation.
    """

    pieces: dict[str, tuple[float, int]] = field(default_factory=dict)
    model_type: int = UNIGRAM
    charsmap: bytes = b""
    adds_space: bool = True
    removes_spaces: bool = True
    escapes_spaces: bool = True
    suffixes_spaces: bool = False
    falls_back_to_bytes: bool = False


def read(file: Path) -> SentencePieces:
    """The model in a file, refused unless a fast tokenizer can do the same."""
    try:
        found = _parsed(file.read_bytes())
    except (ValueError, IndexError, TypeError, struct.error):
        raise InteropError(f"{file}: is no model of SentencePiece") from None
    unusual = [piece for piece, (_, kind) in found.pieces.items() if kind not in (NORMAL, UNKNOWN, CONTROL, UNUSED)]
    mistakes = {
        "has no pieces": not found.pieces,
        "is not of type unigram": found.model_type != UNIGRAM,
        "spells unknown characters as bytes": found.falls_back_to_bytes,
        f"has symbols that users defined, such as {unusual[:1]}": bool(unusual),
        "marks the ends of words, not their beginnings": found.suffixes_spaces or not found.adds_space,
        "leaves spaces as they are": not (found.removes_spaces and found.escapes_spaces),
    }
    for mistake in (mistake for mistake, holds in mistakes.items() if holds):
        raise InteropError(f"{file}: {mistake}, which cannot be converted exactly: import with --segmented")
    return found


def restricted(model: SentencePieces, tokens: Collection[str]) -> SentencePieces:
    """Without the pieces that are not among the tokens, single characters excepted: as its SetVocabulary does."""
    kept = {
        piece: (score, kind if kind != NORMAL or piece in tokens or len(piece) == 1 else UNUSED)
        for piece, (score, kind) in model.pieces.items()
    }
    return replace(model, pieces=kept)


def unigram(
    model: SentencePieces, tokens: Sequence[str], unknown: int, names_kept: Collection[str]
) -> tuple[Tokenizer, int]:
    """
    A tokenizer that cuts as the model does and gives the ids of `tokens`, and how many tokens it has.

    Pieces that `tokens` does not have get ids behind: they take part when a text is cut.

    Args:
        unknown: The id of the unknown token.
        names_kept: Tokens that are found by their names, such as <eos>.
    """
    names = list(tokens)
    known = set(tokens)
    names += [piece for piece, (_, kind) in model.pieces.items() if kind == NORMAL and piece not in known]
    vocabulary = []
    for token in names:
        score, kind = model.pieces.get(token, (0.0, UNUSED))
        is_found = kind == NORMAL or token in names_kept
        vocabulary.append((token, score) if is_found else (MARK + token, 0.0))
    return _with_spaces(Tokenizer(models.Unigram(vocabulary, unk_id=unknown)), model), len(names)


def _with_spaces(tokenizer: Tokenizer, model: SentencePieces) -> Tokenizer:
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    spans_words = any(SPACE in piece[1:] for piece in model.pieces)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=not spans_words)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(MARK, ""), decoders.Metaspace(SPACE, prepend_scheme="always", split=not spans_words)]
    )
    return tokenizer


def _parsed(data: bytes) -> SentencePieces:
    model = SentencePieces()
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(_bytes(value)))
            (score,) = struct.unpack("<f", _bytes(piece.get(2, bytes(4))))
            model.pieces[_bytes(piece[1]).decode()] = (score, _number(piece.get(3, NORMAL)))
        elif number == 2:
            _read_trainer(model, dict(_fields(_bytes(value))))
        elif number == 3:
            _read_normalizer(model, dict(_fields(_bytes(value))))
    return model


def _read_trainer(model: SentencePieces, values: Mapping[int, int | bytes]) -> None:
    model.model_type = _number(values.get(3, UNIGRAM))
    model.suffixes_spaces = bool(values.get(24, 0))
    model.falls_back_to_bytes = bool(values.get(35, 0))


def _read_normalizer(model: SentencePieces, values: Mapping[int, int | bytes]) -> None:
    model.charsmap = _bytes(values.get(2, b""))
    model.adds_space = bool(values.get(3, 1))
    model.removes_spaces = bool(values.get(4, 1))
    model.escapes_spaces = bool(values.get(5, 1))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The numbers of a message's fields and their values, in their order."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        length = {1: 8, 5: 4}.get(kind, -1)
        if kind == 2:
            length, position = _varint(data, position)
        if length < 0 or position + length > len(data):
            raise ValueError("is no message")
        yield key >> 3, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
        if shift > 63:
            raise ValueError("is no number")


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("a number where bytes should be")
    return value


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise TypeError("bytes where a number should be")
    return value
