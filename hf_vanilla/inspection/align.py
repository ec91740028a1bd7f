"""
Alignments of given pairs, read off the attention map that data have chosen, and how good they are.

The links are those of `translate --alignments`: both read them with `inference.alignments.Aligner`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..data.corpus import lines_of, text_of
from ..data.errors import InvalidDataError
from ..inference.alignment_choice import TextPair, choose_alignment, errors_of_maps
from ..inference.alignments import Aligner, Alignment, AlignmentSettings, AttentionMap, Link, error_rate
from ..inference.translator import Translator
from ..inference.units import Unit, line_of, units_of
from ..run_directory import ALIGNMENT, GENERATION_CONFIG
from .pairs import Pairs, encoded_pairs, pairs_for

LINK = re.compile(r"(\d+)([-?p])(\d+)")
"""`1-2` is a sure link, `1?2` and `1p2` are possible ones; source before target, both from 0."""

MIN_PAIRS = 20
"""With fewer the choice of a map would be a guess."""

COUNTED_PAIRS = 20_000
"""Pairs of the training data for the statistical aligner."""

MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""Of links by source and target units: attention that is one off is a common mistake, and looks quite right."""


@dataclass(frozen=True)
class Gold:
    """Links that are known: all sure ones must be there, the possible ones, sure ones among them, may be."""

    sure: set[Link]
    possible: set[Link]


@dataclass(frozen=True)
class AlignReport:
    """
    Args:
        settings: Which map was read, and what indexes count.
        reason: Who chose the map, and how well it did there.
        alignments: Of each pair.
        errors: The alignment error rate of every map, if the links are known.
        moves: That of the links as they are and moved by one, by the moves (source units, target units).
    """

    pairs: Pairs
    settings: AlignmentSettings
    reason: str
    alignments: list[Alignment]
    errors: dict[AttentionMap, float] | None = None
    moves: dict[tuple[int, int], float] | None = None

    @property
    def error(self) -> float | None:
        """The alignment error rate of the chosen map."""
        return None if self.errors is None else self.errors[self.settings.attention]

    def messages(self) -> list[str]:
        """What one has to know to read the links."""
        source, target = (f"{unit}s" for unit in (self.settings.source_unit, self.settings.target_unit))
        lines = [f"{self.pairs.name}: links of source {source} and target {target}, counted from 0, are read from "]
        lines[0] += f"{in_words(self.settings.attention)}; {self.reason}"
        if self.errors is None or self.moves is None or self.error is None:
            return lines
        best = min(self.errors, key=self.errors.__getitem__)
        place = 1 + sum(error < self.error for error in self.errors.values())
        lines.append(
            f"alignment error rate: {100 * self.error:.1f} %, place {place} of {len(self.errors)} maps; the best is "
            f"{in_words(best)}: {100 * self.errors[best]:.1f} %"
        )
        move = min(self.moves, key=self.moves.__getitem__)
        if self.moves[move] < self.moves[0, 0]:
            lines.append(
                f"the links seem to be one off: moved by {move[0]:+d} {source} of the source and {move[1]:+d} {target} "
                f"of the target, their error rate is {100 * self.moves[move]:.1f} %"
            )
        return lines


def in_words(attention: AttentionMap) -> str:
    """As people count: from 1."""
    head = "the mean of the heads" if attention.head is None else f"head {attention.head + 1}"
    does = {"output": "predicts", "input": "reads"}[attention.row]
    return f"{head} of decoder layer {attention.layer + 1}, at the position that {does} the target token"


def align(run: Path, *, data: Path | None = None, gold: Path | None = None, prefix: str = "") -> AlignReport:
    """
    Align the pairs of a file, or the run's own validation pairs.

    Args:
        data: A source, a tab and a target in each line.
        gold: The links of pair n in line n: see `read_gold`.
        prefix: What is read before each source of the file; of validation pairs, those with this prefix.
    """
    translator = Translator.from_pretrained(run, dtype=torch.float32)
    pairs = pairs_for(run, translator, data, None, prefix)
    settings, reason = settings_for(run, translator, pairs)
    return report_of(translator, pairs, settings, reason, None if gold is None else read_gold(gold, pairs, settings))


def settings_for(run: Path, translator: Translator, pairs: Pairs) -> tuple[AlignmentSettings, str]:
    """What the training has chosen; where it has not, what the pairs choose."""
    chosen = getattr(translator.model.generation_config, ALIGNMENT, None)
    if chosen is not None:
        reason = f"so {GENERATION_CONFIG} says, as it agreed best with a statistical aligner when training had ended"
        return AlignmentSettings.of(translator.model), f"{reason} ({100 * chosen['error']:.1f} % error)"
    if len(pairs) < MIN_PAIRS:
        raise InvalidDataError(
            f"{run}: has no {ALIGNMENT!r} in its {GENERATION_CONFIG}, and {len(pairs)} pairs are too few to choose an "
            f"attention map by: give --data FILE with {MIN_PAIRS} or more, or finish the run again"
        )
    training = encoded_pairs(run, "train")
    more: list[TextPair] = []
    if training is not None:
        rows = training[:: math.ceil(len(training) / COUNTED_PAIRS)]
        more = list(zip(rows["source"], rows["target"], strict=True))
    sample = list(zip(pairs.sources, pairs.targets, strict=True))
    choice = choose_alignment(translator.model, translator.tokenizer, sample, more, source_ids=pairs.source_ids)
    reason = f"which agreed best with a statistical aligner, on {choice.pairs} of these pairs"
    return choice.settings, f"{reason} ({100 * choice.error:.1f} % error)"


def report_of(
    translator: Translator, pairs: Pairs, settings: AlignmentSettings, reason: str, gold: Sequence[Gold] | None = None
) -> AlignReport:
    """The links of the pairs and, where others are known, how well they and those of all other maps agree."""
    aligner = Aligner(translator.model, translator.tokenizer, settings, translator.max_tokens)
    found = aligner.align(pairs.sources, pairs.targets, source_ids=pairs.source_ids)
    if gold is None:
        return AlignReport(pairs, settings, reason, found)
    sure, possible = [one.sure for one in gold], [one.possible for one in gold]
    encoded = aligner.encode(pairs.sources, pairs.targets, pairs.source_ids)
    errors = errors_of_maps(translator.model, encoded, sure, possible)
    moves = {
        (by_source, by_target): error_rate(
            ({(source + by_source, target + by_target) for source, target in each.links} for each in found),
            sure,
            possible,
        )
        for by_source, by_target in MOVES
    }
    return AlignReport(pairs, settings, reason, found, errors, moves)


def read_gold(file: Path, pairs: Pairs, settings: AlignmentSettings) -> list[Gold]:
    """
    The links of each pair: "0-0 1?2 3-1", or with p for ?. A sure link is also a possible one.

    Indexes are those of the alignments: of words or characters, from 0.
    """
    gold = [links_in(text_of(line, f"{file}:{number}"), f"{file}:{number}") for number, line in lines_from_1(file)]
    if len(gold) != len(pairs):
        raise InvalidDataError(f"{file}: has {len(gold)} lines, and there are {len(pairs)} pairs: one line for each")
    for number, (one, source, target) in enumerate(zip(gold, pairs.sources, pairs.targets, strict=True), 1):
        texts: tuple[tuple[str, Unit], ...] = (
            (line_of(source), settings.source_unit),
            (target, settings.target_unit),
        )
        sizes = [len(units_of(text, unit)) for text, unit in texts]
        for link in one.possible:
            if link[0] >= sizes[0] or link[1] >= sizes[1]:
                raise InvalidDataError(
                    f"{file}:{number}: link {link[0]}-{link[1]} is outside of {sizes[0]} source {texts[0][1]}s and "
                    f"{sizes[1]} target {texts[1][1]}s; indexes count from 0"
                )
    return gold


def lines_from_1(file: Path) -> "enumerate[bytes]":
    return enumerate(lines_of(file), 1)


def links_in(line: str, where: str = "a line of links") -> Gold:
    sure: set[Link] = set()
    possible: set[Link] = set()
    for text in line.split():
        found = LINK.fullmatch(text)
        if found is None:
            raise InvalidDataError(f"{where}: {text!r} is no link: 1-2 is a sure one, 1?2 or 1p2 a possible one")
        link = int(found[1]), int(found[3])
        possible.add(link)
        if found[2] == "-":
            sure.add(link)
    return Gold(sure, possible)


def soft_line(alignment: Alignment) -> str:
    """
    For each target unit the weights of all source units, and last what is left for the end of the sentence.

    In the format of Marian's soft alignments: commas between the weights, spaces between target units.
    """
    rows = zip(alignment.weights.tolist(), alignment.outside.tolist(), strict=True)
    return " ".join(",".join(f"{weight:.4f}" for weight in (*row, rest)) for row, rest in rows)
