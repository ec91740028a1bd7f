"""
The senses of a word in the layers of the encoder, each occurrence labelled by its aligned translation.

How well a layer tells them apart is the share of occurrences whose nearest other one has the same label. Two controls
stand beside it, without which the number says nothing: labels shuffled among the occurrences, and an encoder of the
same size that was never trained. The latter is far above chance, too, as it mixes the words around into each vector.
"""

import string
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ..data.errors import InvalidDataError
from ..inference.alignments import Aligner, AlignmentSettings
from ..inference.translator import Translator
from ..inference.units import line_of, members_of_source, units_of
from .align import in_words, settings_for
from .neighbours import unit_vectors
from .pairs import Pairs, pairs_for
from .vectors import states_of

MIN_OCCURRENCES = 10
"""A label with fewer is left out."""

MAX_OCCURRENCES = 60
"""Of each label."""

STEM = 4
"""Translations that begin with as many same letters are one label: inflections of a word."""

SHUFFLES = 20


@dataclass(frozen=True)
class Occurrence:
    """
    Args:
        pair: Its place among the pairs.
        unit: Which word, or character, of the source it is.
    """

    pair: int
    unit: int
    label: str


@dataclass(frozen=True)
class SensesReport:
    """
    Args:
        word: Whose senses these are.
        pairs: Where it was looked for.
        map: Of the alignment, in words.
        labels: How often each was there; so many of each were compared.
        compared: Occurrences of each label that were compared, as many of each: the chance is 1 / labels.
        trained: For the embeddings and each layer, the share whose nearest other occurrence has the same label.
        untrained: The same by an encoder with first weights.
        shuffled: The same with labels shuffled: (shuffles, layers + 1).
    """

    word: str
    pairs: str
    map: str
    labels: dict[str, int]
    compared: int
    trained: list[float]
    untrained: list[float]
    shuffled: np.ndarray

    @property
    def chance(self) -> float:
        return 1 / len(self.labels)

    def as_dict(self) -> dict[str, Any]:
        layers = ["embeddings", *range(1, len(self.trained))]
        return {
            "word": self.word,
            "pairs": self.pairs,
            "alignment": self.map,
            "labels": self.labels,
            "compared_of_each_label": self.compared,
            "chance": self.chance,
            "layers": [
                {
                    "layer": layer,
                    "trained": self.trained[place],
                    "untrained": self.untrained[place],
                    "shuffled_mean": float(self.shuffled[:, place].mean()),
                    "shuffled_most": float(self.shuffled[:, place].max()),
                }
                for place, layer in enumerate(layers)
            ],
        }

    def as_table(self) -> str:
        labels = ", ".join(f"{label} {count}" for label, count in self.labels.items())
        lines = [
            f"{self.word}: {labels} times in {self.pairs}; {self.compared} of each compared",
            f"labels by {self.map}",
            "share whose nearest other occurrence has the same label:",
            f"{'layer':>10}  trained  untrained  labels shuffled (most of {len(self.shuffled)})",
        ]
        for each in self.as_dict()["layers"]:
            lines.append(
                f"{each['layer']:>10}  {each['trained']:7.2f}  {each['untrained']:9.2f}  "
                f"{each['shuffled_mean']:15.2f} ({each['shuffled_most']:.2f})"
            )
        lines.append(
            "What the training has added is the difference of trained and untrained, not of trained and chance."
        )
        return "\n".join(lines)


def senses_of(run: Path, word: str, *, data: Path | None = None, prefix: str = "") -> SensesReport:
    """
    Args:
        word: A word of the sources; for a model whose alignment counts their characters, a character.
        data: A source, a tab and a target in each line. If not given, the run's validation pairs.
        prefix: What is read before each source of the file; of validation pairs, those with this prefix.
    """
    translator = Translator.from_pretrained(run, dtype=torch.float64)
    pairs = pairs_for(run, translator, data, None, prefix)
    settings, _ = settings_for(run, translator, pairs)
    found = occurrences_of(translator, pairs, settings, word)
    chosen, counts = balanced(found, word, pairs.name)
    labels = np.array([list(counts).index(each.label) for each in chosen])
    sentences = np.array([each.pair for each in chosen])
    trained = vectors_of_occurrences(translator.model, translator, pairs, settings, chosen)
    untrained = vectors_of_occurrences(with_first_weights(translator.model), translator, pairs, settings, chosen)
    random = np.random.default_rng(1)
    shuffles = [random.permutation(labels) for _ in range(SHUFFLES)]
    return SensesReport(
        word,
        pairs.name,
        in_words(settings.attention),
        counts,
        len(chosen) // len(counts),
        [separation(layer, labels, sentences) for layer in trained],
        [separation(layer, labels, sentences) for layer in untrained],
        np.array([[separation(layer, each, sentences) for layer in trained] for each in shuffles]),
    )


def occurrences_of(translator: Translator, pairs: Pairs, settings: AlignmentSettings, word: str) -> list[Occurrence]:
    """Where the word is, with what it is translated to. Those without a translation are left out."""
    wanted = bare(word)
    units: dict[int, list[int]] = {}
    for place, source in enumerate(pairs.sources):
        line = line_of(source)
        spans = units_of(line, settings.source_unit)
        if here := [unit for unit, (first, end) in enumerate(spans) if bare(line[first:end]) == wanted]:
            units[place] = here
    places = list(units)
    alignments = Aligner(translator.model, translator.tokenizer, settings).align(
        [pairs.sources[place] for place in places],
        [pairs.targets[place] for place in places],
        source_ids=[pairs.source_ids[place] for place in places],
        target_ids=[pairs.target_ids[place] for place in places],
    )
    found = []
    for place, alignment in zip(places, alignments, strict=True):
        for unit in units[place]:
            label = label_of(pairs.targets[place], [t for s, t in alignment.links if s == unit], settings)
            if label:
                found.append(Occurrence(place, unit, label))
    return found


def label_of(target: str, linked: list[int], settings: AlignmentSettings) -> str:
    """The translation of an occurrence: the characters that it gave, or the beginning of the first word."""
    spans = units_of(target, settings.target_unit)
    if settings.target_unit == "character":
        return "".join(target[slice(*spans[unit])] for unit in linked).strip()
    return next((name for unit in linked if (name := bare(target[slice(*spans[unit])])[:STEM])), "")


def bare(word: str) -> str:
    """In small letters and without punctuation around it, unless it is nothing else."""
    return (word.strip(string.punctuation + "„“”»«¿¡…、。") or word).casefold()


def balanced(found: list[Occurrence], word: str, where: str) -> tuple[list[Occurrence], dict[str, int]]:
    """As many of each label as the rarest has that counts; and how often each label was there."""
    counts = Counter(each.label for each in found)
    enough = {label: count for label, count in counts.most_common() if count >= MIN_OCCURRENCES}
    if len(enough) < 2:
        known = ", ".join(f"{label} {count}" for label, count in counts.most_common(5)) or "none"
        raise InvalidDataError(
            f"{word!r} has not two translations that are there {MIN_OCCURRENCES} times each in {where} (translations: "
            f"{known}): choose another word, or more pairs with --data FILE"
        )
    number = min(MAX_OCCURRENCES, *enough.values())
    by_label: dict[str, list[Occurrence]] = defaultdict(list)
    for each in found:
        by_label[each.label].append(each)
    random = np.random.default_rng(0)
    chosen = [by_label[label][place] for label in enough for place in random.permutation(enough[label])[:number]]
    return chosen, enough


def vectors_of_occurrences(
    model: PreTrainedModel,
    translator: Translator,
    pairs: Pairs,
    settings: AlignmentSettings,
    occurrences: list[Occurrence],
) -> np.ndarray:
    """The mean of the tokens of each occurrence: (layers + 1, occurrences, d_model)."""
    places = sorted({each.pair for each in occurrences})
    states = {places[row]: each for row, each in states_of(model, [pairs.source_ids[place] for place in places])}
    found = []
    for each in occurrences:
        ids = pairs.source_ids[each.pair]
        members = members_of_source(translator.tokenizer, pairs.sources[each.pair], ids, settings.source_unit)
        found.append(states[each.pair][:, members.tokens[members.units == each.unit]].mean(1))
    return np.stack(found, 1)


def with_first_weights(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """A model of the same size that was never trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = type(model)(model.config)
    return fresh.to(device=model.device, dtype=model.dtype).eval()


def separation(vectors: np.ndarray, labels: np.ndarray, sentences: np.ndarray) -> float:
    """
    The share of vectors whose nearest other one, by cosine, has the same label. The same sentence is not looked at.
    Where several are as near, the share of those with the label.

    A correction for anisotropy that all vectors share leaves the nearest as it is, so there is none here.
    """
    unit = unit_vectors(vectors)
    cosines = unit @ unit.T
    cosines[sentences[:, None] == sentences[None]] = -np.inf
    nearest = cosines >= cosines.max(1, keepdims=True) - 1e-9
    same = labels[:, None] == labels[None]
    return float(((nearest & same).sum(1) / nearest.sum(1)).mean())
