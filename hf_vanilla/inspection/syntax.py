"""
Which heads of the encoder find syntactic relations, on sentences whose dependencies are known (a file in CoNLL-U).

For each relation and direction: how often does the largest weight of a word stand on the other end of the relation?
Beside it, as in Voita et al. (2019), the most frequent distance between the two ends: who always looks so far from the
word is right as often without any syntax.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..data.corpus import lines_of, text_of
from ..data.errors import InvalidDataError
from ..inference.alignments import between_units
from ..inference.translator import Translator
from ..inference.units import Membership, Span, overlaps, source_spans
from .attention import of_allowed_length
from .reading import each_maps_of

COLUMNS = 10
MARGIN = 0.1
"""A head is called syntactic if it is better by so much than the most frequent distance: Voita et al. (2019)."""

MIN_COUNT = 20
"""A relation that is rarer gives no head a role: our own limit."""

PARENT, CHILD = "to its head", "from its head"
"""Directions: from the dependent to its syntactic head, and from there to the dependent."""


@dataclass(frozen=True)
class Word:
    """
    Args:
        span: Its characters in the sentence. Words that are written as one (French "du": de le) have the same.
        head: The index of its syntactic head among the words; None for the root.
    """

    span: Span
    head: int | None
    relation: str


@dataclass(frozen=True)
class Sentence:
    """
    Args:
        where: The file and line of its first word, for messages.
    """

    text: str
    words: tuple[Word, ...]
    where: str = "a sentence"


@dataclass(frozen=True)
class Relation:
    """
    How well each head finds a relation in a direction.

    Args:
        count: How many there are of it.
        distance: The most frequent distance from the word to the other end, in words.
        baseline: How many of them have that distance, as a share.
        accuracy: (layers, heads).
    """

    name: str
    direction: str
    count: int
    distance: int
    baseline: float
    accuracy: np.ndarray

    @property
    def finders(self) -> list[tuple[int, int]]:
        """Layers and heads, from 0, that are better than the baseline by the margin. None, where there is too few."""
        if self.count < MIN_COUNT:
            return []
        return [(int(layer), int(head)) for layer, head in np.argwhere(self.accuracy >= self.baseline + MARGIN)]


@dataclass
class _Tally:
    distances: Counter[int] = field(default_factory=Counter)
    hits: np.ndarray | int = 0


# --- The file -------------------------------------------------------------------------------------------------------


def read_conllu(file: Path) -> list[Sentence]:
    """The sentences of a file in CoNLL-U, of which the columns ID, FORM, HEAD, DEPREL and MISC are read."""
    sentences = []
    rows: list[list[str]] = []
    text, first = None, 1
    for number, line in enumerate([*(text_of(each, f"{file}:{n}") for n, each in enumerate(lines_of(file), 1)), ""], 1):
        if line.startswith("# text = "):
            text = line.removeprefix("# text = ")
        elif line.startswith("#"):
            continue
        elif line.strip():
            first = first if rows else number
            rows.append(_row(line, f"{file}:{number}"))
        else:
            if rows:
                sentences.append(_sentence(rows, text, f"{file}:{first}"))
            rows, text = [], None
    if not sentences:
        raise InvalidDataError(
            f"{file}: has no sentence: give a file in CoNLL-U, with ten columns and empty lines between"
        )
    return sentences


def _row(line: str, where: str) -> list[str]:
    cells = line.split("\t")
    if len(cells) != COLUMNS:
        raise InvalidDataError(f"{where}: has {len(cells)} columns, separated by tabs; CoNLL-U has {COLUMNS}")
    return cells


def _sentence(rows: Sequence[Sequence[str]], text: str | None, where: str) -> Sentence:
    """Ranges (1-2) are what is written for several words; empty nodes (1.1) are not written."""
    text = _written(rows) if text is None else text
    end = last_of_range = 0
    span: Span = (0, 0)
    words: list[tuple[Span, str, str]] = []
    ids: dict[str, int] = {"0": -1}
    for cells in rows:
        name, form = cells[:2]
        if "." in name:
            continue
        is_range = "-" in name
        if is_range or len(words) >= last_of_range:
            start = text.find(form, end)
            if start < 0:
                raise InvalidDataError(f"{where}: {form!r} is not in the rest of its # text: {text[end:]!r}")
            span, end = (start, start + len(form)), start + len(form)
        if is_range:
            last_of_range = _number(name.partition("-")[2], where)
        elif name != str(len(words) + 1):
            raise InvalidDataError(f"{where}: word {len(words) + 1} of the sentence has the ID {name!r}")
        else:
            ids[name] = len(words)
            words.append((span, cells[6], cells[7].partition(":")[0]))
    return Sentence(text, tuple(Word(span, _head(ids, head, where), relation) for span, head, relation in words), where)


def _written(rows: Sequence[Sequence[str]]) -> str:
    """The text, where no line says it: forms with spaces between, but behind those with SpaceAfter=No."""
    text, last_of_range, number = "", 0, 0
    for cells in rows:
        name, form, misc = cells[0], cells[1], cells[9]
        if "." in name:
            continue
        is_range = "-" in name
        number += not is_range
        if is_range or number > last_of_range:
            text += form + ("" if "SpaceAfter=No" in misc.split("|") else " ")
        if is_range:
            last_of_range = int(name.partition("-")[2])
    return text.rstrip()


def _number(text: str, where: str) -> int:
    if not text.isdecimal():
        raise InvalidDataError(f"{where}: {text!r} is no number of a word")
    return int(text)


def _head(ids: dict[str, int], head: str, where: str) -> int | None:
    if head not in ids:
        raise InvalidDataError(f"{where}: HEAD {head!r} is the number of no word of the sentence")
    return None if ids[head] < 0 else ids[head]


# --- The heads ------------------------------------------------------------------------------------------------------


def relations_of(translator: Translator, sentences: Sequence[Sentence], prefix: str = "") -> list[Relation]:
    """All relations in both directions, the most frequent first."""
    model, tokenizer = translator.model, translator.tokenizer
    ids = translator.encoder.sources([(sentence.text,) for sentence in sentences], prefix)
    for sentence, of_text in zip(sentences, ids, strict=True):
        of_allowed_length(of_text, f"{sentence.where}: the sentence", translator)
    tallies: dict[tuple[str, str], _Tally] = {}
    for place, maps in each_maps_of(model, ids, [[tokenizer.eos_token_id]] * len(ids), ["encoder"]):
        sentence = sentences[place]
        spans = source_spans(tokenizer, (sentence.text,), ids[place])
        peaks, unit_of_word = word_peaks(maps.encoder, sentence, spans)
        for name, direction, word, other in links_of(sentence):
            tally = tallies.setdefault((name, direction), _Tally())
            tally.distances[other - word] += 1
            tally.hits = tally.hits + (peaks[:, :, unit_of_word[word]] == unit_of_word[other])
    found = [_relation(*names, tally) for names, tally in tallies.items()]
    return sorted(found, key=lambda each: (-each.count, each.name, each.direction))


def links_of(sentence: Sentence) -> Iterator[tuple[str, str, int, int]]:
    """Relation, direction, word and other end. Two words that are written as one have no link that can be seen."""
    for index, word in enumerate(sentence.words):
        if word.head is not None and sentence.words[word.head].span != word.span:
            yield word.relation, PARENT, index, word.head
            yield word.relation, CHILD, word.head, index


def word_peaks(maps: np.ndarray, sentence: Sentence, spans: Sequence[Span]) -> tuple[np.ndarray, list[int]]:
    """
    Where the largest weight of each written word stands, the end of the sentence left out.

    Returns:
        (layers, heads, written words), and for each word the index of the written word that it belongs to.
    """
    written = list(dict.fromkeys(word.span for word in sentence.words))
    members: Membership = overlaps(spans, written)
    weights, _ = between_units(maps, members, members)
    place = {span: index for index, span in enumerate(written)}
    return weights.argmax(-1), [place[word.span] for word in sentence.words]


def _relation(name: str, direction: str, tally: _Tally) -> Relation:
    count = tally.distances.total()
    # Of equally frequent distances the shortest: the answer must not depend on the order of the sentences.
    distance, most = min(tally.distances.items(), key=lambda each: (-each[1], abs(each[0]), each[0]))
    return Relation(name, direction, count, distance, most / count, np.asarray(tally.hits) / count)


def syntactic_heads(relations: Iterable[Relation]) -> dict[tuple[int, int], list[Relation]]:
    """For each head of the encoder, (layer, head) from 0, the relations that it finds."""
    found: dict[tuple[int, int], list[Relation]] = {}
    for relation in relations:
        for head in relation.finders:
            found.setdefault(head, []).append(relation)
    return found
