"""
What people look at first, as one HTML page: scores, the score by length, and sentences beside their references.

The page needs no network and has no JavaScript, and its Content-Security-Policy allows neither: a text that got past
the escaping could do nothing.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from rapidfuzz.distance import Levenshtein

from ..pages import hash_of, rendered
from .examples import Examples
from .metrics import Chrf, Counts, Metric
from .outcome import Outcome, shown, shown_p, signatures_of
from .significance import RESAMPLES, confidence_of, resample, scores_of_resamples

Lengths = npt.NDArray[np.integer[Any]]

SENTENCES = 6  # of each kind: the best, the worst, ...
BUCKETS = 8
MAX_SHOWN = 800  # characters of a text
WORDY = 2  # a test set with more words than this in a reference is one of words, with fewer of characters


@dataclass(frozen=True)
class Piece:
    """A part of a text, and whether it differs from the text that it is compared with."""

    text: str
    differs: bool = False


@dataclass(frozen=True)
class Line:
    """A text of an example and what it is. The pieces of a hypothesis that differ are too much, others are missing."""

    label: str
    pieces: Sequence[Piece]
    is_hypothesis: bool = False
    cut: int = 0  # characters that are not shown


@dataclass(frozen=True)
class Sentence:
    """An example: its number in the test set, its score by each system, and its texts."""

    number: int
    score: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class Bar:
    """A score, and its confidence interval as far as it is between 0 and 100."""

    score: float
    ci: float

    @property
    def ends(self) -> tuple[float, float]:
        return max(0.0, self.score - self.ci), min(100.0, self.score + self.ci)


@dataclass(frozen=True)
class Bucket:
    """The sentences of some lengths, and a bar for each system."""

    label: str
    sentences: int
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Section:
    """What the page says of a test set."""

    outcome: Outcome
    rows: Sequence[tuple[str, bool, Sequence[str]]]  # metric, whether less is better, and what is in the columns
    length: str
    buckets: Sequence[Bucket]
    kinds: Sequence[tuple[str, Sequence[Sentence]]]
    sentence_metric: Metric


def page_of(outcomes: Sequence[Outcome]) -> str:
    """The page for some test sets."""
    folder = files("hf_vanilla.evaluation")
    style = (folder / "report_page.css").read_text(encoding="utf-8")
    return rendered(
        (folder / "report_page.html").read_text(encoding="utf-8"),
        sections=[section_of(outcome) for outcome in outcomes],
        resamples=RESAMPLES,
        signatures=signatures_of(outcomes),
        style=Markup(style),  # noqa: S704 - it is our own file
        style_hash=hash_of(style),
    )


def section_of(outcome: Outcome) -> Section:
    measured, length = lengths_of(outcome.examples)
    sentence_metric, scores = sentence_scores(outcome)
    wordwise = has_words([group[0] for group in outcome.examples.references])
    rows = []
    for metric in outcome.metrics:
        p_value = [shown_p(outcome.p_values[metric.name])] if outcome.baseline else []
        cells = [*(shown(system, metric.name) for system in outcome.systems), *p_value]
        rows.append((metric.name, metric.lower_is_better, cells))
    return Section(
        outcome=outcome,
        rows=rows,
        length=length,
        buckets=buckets_of(outcome, measured),
        kinds=[
            (title, [sentence_of(outcome, index, sentence_metric, scores, wordwise) for index in chosen])
            for title, chosen in kinds_of(sentence_metric, scores, measured)
            if chosen
        ],
        sentence_metric=sentence_metric,
    )


# Lengths


def lengths_of(examples: Examples) -> tuple[Lengths, str]:
    """The length of each source, or of its first reference if sources are not known, and what it is counted in."""
    if examples.sources is None:
        side, texts = "reference", [group[0] for group in examples.references]
    else:
        side, texts = "source", [" ".join(parts) for parts in examples.sources]
    unit = "words" if has_words(texts) else "characters"
    return np.array([len(text.split() if unit == "words" else text) for text in texts]), f"{unit} of the {side}"


def has_words(texts: Sequence[str]) -> bool:
    return sum(len(text.split()) for text in texts) > WORDY * len(texts)


def buckets_of(outcome: Outcome, lengths: Lengths) -> list[Bucket]:
    """The first metric by length, with about as many sentences in each bucket."""
    starts = np.unique(np.quantile(lengths, np.arange(BUCKETS) / BUCKETS, method="lower"))
    bucket_of = np.searchsorted(starts, lengths, side="right") - 1
    buckets = []
    for position in range(len(starts)):
        chosen = bucket_of == position
        start, end = lengths[chosen].min(), lengths[chosen].max()
        bars = [bar_of(outcome.metrics[0], system.counts[0][chosen]) for system in outcome.systems]
        buckets.append(Bucket(f"{start}" if start == end else f"{start}\u2013{end}", int(chosen.sum()), bars))
    return buckets


def bar_of(metric: Metric, counts: Counts) -> Bar:
    ci = confidence_of(scores_of_resamples(metric, resample(counts))).ci
    return Bar(float(metric.score(counts.sum(axis=0))), ci)


# Sentences


def sentence_scores(outcome: Outcome) -> tuple[Metric, list[list[float]]]:
    """
    The scores of each sentence, by system. BLEU and exact match say little of a single one: the first other metric is
    taken, or chrF.
    """
    counts: list[Counts]
    for number, metric in enumerate(outcome.metrics):
        if metric.name not in ("bleu", "exact_match"):
            counts = [system.counts[number] for system in outcome.systems]
            break
    else:
        metric, references = Chrf(), [list(group) for group in outcome.examples.references]
        counts = [metric.counts(list(system.hypotheses), references) for system in outcome.systems]
    return metric, [[float(metric.score(row)) for row in rows] for rows in counts]


def kinds_of(metric: Metric, scores: Sequence[Sequence[float]], lengths: Lengths) -> list[tuple[str, list[int]]]:
    """Which sentences are shown. Of equally good ones, the longest say most."""
    sign = -1 if metric.lower_is_better else 1
    goodness = [sign * score for score in scores[0]]
    everything = range(len(goodness))

    def first(key: Callable[[int], tuple[float, ...]], among: Iterable[int] = everything) -> list[int]:
        return sorted(among, key=key)[:SENTENCES]

    kinds = []
    if len(scores) == 2:
        gain = [sign * (mine - other) for mine, other in zip(*scores, strict=True)]
        kinds = [
            ("Better than the other system", first(lambda i: (-gain[i],), [i for i in everything if gain[i] > 0])),
            ("Worse than the other system", first(lambda i: (gain[i],), [i for i in everything if gain[i] < 0])),
        ]
    return [
        *kinds,
        ("Worst", first(lambda i: (goodness[i], -lengths[i]))),
        ("Best", first(lambda i: (-goodness[i], -lengths[i]))),
        ("Longest", first(lambda i: (-lengths[i],))),
        ("Shortest", first(lambda i: (lengths[i],))),
    ]


def sentence_of(
    outcome: Outcome, index: int, metric: Metric, scores: Sequence[Sequence[float]], wordwise: bool
) -> Sentence:
    hypotheses = [system.hypotheses[index] for system in outcome.systems]
    references = outcome.examples.references[index]
    cut_up = {text: units(text, wordwise) for text in (*hypotheses, *references)}
    nearest = min(references, key=lambda text: Levenshtein.distance(cut_up[hypotheses[0]], cut_up[text]))
    lines = [line_of("Source", " | ".join(outcome.examples.sources[index]))] if outcome.examples.sources else []
    for label, text in zip(("Hypothesis", "Other system"), hypotheses, strict=False):
        lines.append(line_of(label, text, too_much(cut_up[text], cut_up[nearest]), is_hypothesis=True))
    lines.append(line_of("Reference", nearest, too_much(cut_up[nearest], cut_up[hypotheses[0]])))
    lines += [line_of("Another reference", text) for text in references if text != nearest]
    score = " against ".join(f"{system[index]:.1f}" for system in scores)
    return Sentence(index + 1, f"{metric.name} {score}", lines)


def line_of(label: str, text: str, pieces: Sequence[Piece] = (), is_hypothesis: bool = False) -> Line:
    """A text in pieces, or in one if none are given."""
    return Line(label, pieces or [Piece(text[:MAX_SHOWN])], is_hypothesis, cut=max(0, len(text) - MAX_SHOWN))


def units(text: str, wordwise: bool) -> list[str]:
    """The words of a text with the white space after them, or its characters, as far as they are shown."""
    beginning = text[:MAX_SHOWN]
    return re.findall(r"^\s+|\S+\s*", beginning) if wordwise else list(beginning)


def too_much(units: Sequence[str], others: Sequence[str]) -> list[Piece]:
    """The text of some units. Those that have to be changed or deleted to get the others differ."""
    codes = Levenshtein.opcodes([unit.rstrip() or " " for unit in units], [unit.rstrip() or " " for unit in others])
    pieces = []
    for code in codes:
        text = "".join(units[code.src_start : code.src_end])
        visible_part = text.rstrip() or text
        pieces += [Piece(visible_part, code.tag != "equal"), Piece(text[len(visible_part) :])]
    return [piece for piece in pieces if piece.text]
