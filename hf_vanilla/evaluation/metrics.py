"""
The metrics: BLEU, chrF, chrF++, TER, exact match and error rates, all of them in percent.

A metric counts in each sentence what its score is made of, n-grams that match or edits for example. The score of any
set of sentences follows from the sums of these counts, so that the text is looked at only once, also for the 1000
resamples of a confidence interval. Nothing here imports PyTorch or `evaluate`, which would take seconds.
"""

import difflib
import inspect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics import base
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from ..data.errors import InvalidDataError
from ..private_names import require_private_names

require_private_names(__name__)

References = Sequence[str] | Sequence[Sequence[str]]  # of each prediction: one, or a list of any length but 0
Scores = dict[str, float | str]
Option = bool | str
Counts = npt.NDArray[np.floating[Any]]
"""A row of counts for each sentence."""
Sums = npt.NDArray[np.floating[Any]]
"""The sum of these rows."""


class Metric(ABC):
    """What is counted in each sentence, and how the score follows from the sums."""

    name: ClassVar[str]
    lower_is_better: ClassVar[bool] = False

    @abstractmethod
    def counts(self, hypotheses: list[str], references: list[list[str]]) -> Counts:
        """A row for each hypothesis, compared with its references."""

    @abstractmethod
    def score(self, sums: Sums) -> float:
        """The score of the sentences whose counts were summed."""

    def details(self, sums: Sums) -> dict[str, float]:
        """What else is reported. The names begin with that of the metric."""
        return {}

    def signature(self, resamples: int | None = None, seed: int | None = None) -> str | None:
        """What exactly was computed, as sacrebleu writes it; known when sentences have been counted."""
        return None

    def scores(self, counts: Counts, resamples: int | None = None, seed: int | None = None) -> Scores:
        """All that is reported of the sentences with these counts."""
        sums = counts.sum(axis=0)
        signature = self.signature(resamples, seed)
        signed: Scores = {f"{self.name}_signature": signature} if signature else {}
        return {self.name: float(self.score(sums)), **self.details(sums), **signed}


class SacrebleuMetric(Metric):
    """A metric of sacrebleu (Post, 2018)."""

    def __init__(self, metric: base.Metric):
        self.metric = metric

    def counts(self, hypotheses: list[str], references: list[list[str]]) -> Counts:
        streams = reference_streams(references)
        return np.array(self.metric._extract_corpus_statistics(hypotheses, streams), dtype=np.float64)

    def score(self, sums: Sums) -> float:
        return self._score(sums).score

    def signature(self, resamples: int | None = None, seed: int | None = None) -> str | None:
        self.metric.n_bootstrap, self.metric.seed = resamples, None if seed is None else str(seed)
        return str(self.metric.get_signature())

    def _score(self, sums: Sums) -> Any:
        return self.metric._compute_score_from_stats(sums)  # type: ignore[arg-type] # it asks for a list, and indexes it


class Bleu(SacrebleuMetric):
    """
    BLEU of the corpus (Papineni et al., 2002).

    Args:
        tokenize: one of sacrebleu's tokenizers; "none" if the texts are tokenised already.
    """

    name = "bleu"

    def __init__(self, lowercase: bool = False, tokenize: str = "13a"):
        if tokenize not in BLEU.TOKENIZERS:
            raise unknown("tokenizer", tokenize, BLEU.TOKENIZERS)
        try:  # force: no warning of text that is tokenised, if that is what was said
            super().__init__(BLEU(lowercase=lowercase, tokenize=tokenize, force=tokenize == "none"))
        except (RuntimeError, ImportError) as error:
            raise ValueError(f"tokenizer {tokenize!r}: {' '.join(str(error).split())}") from None

    def details(self, sums: Sums) -> dict[str, float]:
        score = self._score(sums)
        precisions = {f"bleu_precision_{order}": float(value) for order, value in enumerate(score.precisions, 1)}
        return precisions | {"bleu_brevity_penalty": score.bp}


class Chrf(SacrebleuMetric):
    """chrF2 of the corpus (Popović, 2015): n-grams of 1 to 6 characters, recall counts twice."""

    name = "chrf"
    word_order: ClassVar[int] = 0

    def __init__(self, lowercase: bool = False):
        super().__init__(CHRF(lowercase=lowercase, word_order=self.word_order))


class ChrfPlusPlus(Chrf):
    """chrF2++ of the corpus (Popović, 2017): chrF with words and pairs of words beside the n-grams of characters."""

    name = "chrf++"
    word_order = 2


class Ter(SacrebleuMetric):
    """Translation edit rate (Snover et al., 2006): edits and moves of words per word of the references, lowercased."""

    name = "ter"
    lower_is_better = True

    def __init__(self) -> None:
        super().__init__(TER())


class ExactMatch(Metric):
    """The share of predictions that are equal to one of their references, white space and case included."""

    name = "exact_match"

    def counts(self, hypotheses: list[str], references: list[list[str]]) -> Counts:
        pairs = zip(hypotheses, references, strict=True)
        return np.array([(hypothesis in group, 1) for hypothesis, group in pairs], dtype=np.float64)

    def score(self, sums: Sums) -> float:
        return 100 * sums[0] / sums[1]


class ErrorRate(Metric):
    """Edits per length of the references; of several references, the one with the lowest rate."""

    lower_is_better = True
    unit: ClassVar[str]

    @abstractmethod
    def split(self, text: str) -> Sequence[str]:
        """The units of a text."""

    def counts(self, hypotheses: list[str], references: list[list[str]]) -> Counts:
        groups = [[self.split(reference) for reference in group] for group in references]
        found = np.array(list(map(nearest_reference, map(self.split, hypotheses), groups)), dtype=np.float64)
        edits, length = found.sum(axis=0)
        if length == 0:
            raise InvalidDataError(
                f"error rate: {edits:.0f} edits per 0 {self.unit} of reference; there must be at least 1"
            )
        return found

    def score(self, sums: Sums) -> float:
        edits, length = sums
        return 100 * edits / length if length else 100.0 * bool(edits)  # only a part of the corpus can have no length


class CharacterErrorRate(ErrorRate):
    """Inserted, deleted and replaced characters (code points, white space too) per character of the references."""

    name, unit = "character_error_rate", "characters"

    def split(self, text: str) -> Sequence[str]:
        return text


class TokenErrorRate(ErrorRate):
    """Inserted, deleted and replaced tokens per token of the references: error rate of words, or of spaced phonemes."""

    name, unit = "token_error_rate", "tokens"

    def split(self, text: str) -> Sequence[str]:
        return text.split()


METRICS: dict[str, type[Metric]] = {
    metric.name: metric for metric in (Bleu, Chrf, ChrfPlusPlus, Ter, ExactMatch, CharacterErrorRate, TokenErrorRate)
}


def report(
    predictions: Sequence[str], references: References, metrics: Iterable[str] = tuple(METRICS), **options: Option
) -> Scores:
    """All scores in one flat dictionary. Each option, `lowercase` say, goes to those metrics that have it."""
    chosen = metrics_with(options, metrics)
    hypotheses, groups = checked(predictions, references)
    scores: Scores = {}
    for metric in chosen:
        scores |= metric.scores(metric.counts(hypotheses, groups))
    return scores


def metrics_with(options: Mapping[str, Option], names: Iterable[str]) -> list[Metric]:
    """The metrics of these names, each with those of the options that it has."""
    known = {option: None for metric in METRICS.values() for option in options_of(metric)}
    for option in options:
        if option not in known:
            raise unknown("option", option, known)
    return [_metric_with(options, name) for name in names]


def _metric_with(options: Mapping[str, Option], name: str) -> Metric:
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    own = options_of(METRICS[name])
    return METRICS[name](**{option: value for option, value in options.items() if option in own})


def options_of(metric: type[Metric]) -> list[str]:
    return list(inspect.signature(metric).parameters)


def unknown(what: str, name: str, known: Collection[str]) -> ValueError:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)
    return ValueError(f"unknown {what} {name!r}: the nearest is {nearest[0]!r}, of {', '.join(known)}")


def checked(predictions: Sequence[str], references: References) -> tuple[list[str], list[list[str]]]:
    """The predictions, and a list of references for each."""
    hypotheses, groups = texts("predictions", predictions), reference_groups(references)
    if not len(hypotheses) == len(groups) > 0:
        counts = f"{len(hypotheses)} predictions and {len(groups)} references"
        raise ValueError(f"{counts}: there must be as many of each, and at least 1")
    return hypotheses, groups


def texts(name: str, candidates: Sequence[str]) -> list[str]:
    """A list of texts, checked: a lone text would pass for the list of its characters."""
    if isinstance(candidates, str) or not isinstance(candidates, Collection):
        raise TypeError(f"{name} must be a list of texts, not {candidates!r:.60}")
    for number, candidate in enumerate(candidates):
        if not isinstance(candidate, str):
            raise TypeError(f"{name}[{number}] must be a text, not {candidate!r:.60}")
    return list(candidates)


def reference_groups(references: References) -> list[list[str]]:
    """A list of references for each prediction."""
    if isinstance(references, str):
        raise TypeError(f"references must be a list, not {references!r:.60}")
    groups = [
        [group] if isinstance(group, str) else texts(f"references[{number}]", group)
        for number, group in enumerate(references)
    ]
    if [] in groups:
        raise ValueError(f"references[{groups.index([])}] are 0 references; there must be at least 1")
    return groups


def reference_streams(references: list[list[str]]) -> list[Sequence[str]]:
    """As sacrebleu wants them: the first reference of every sentence, then the second or None, and so on."""
    return list(itertools.zip_longest(*references))


def nearest_reference(prediction: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Edits and length of the reference with the fewest edits for its length, whatever the order of the references."""
    candidates = [(Levenshtein.distance(prediction, reference), len(reference)) for reference in references]
    return min(candidates, key=lambda candidate: (edits_per_unit(*candidate), candidate))


def edits_per_unit(edits: int, length: int) -> float:
    if length == 0:
        return math.inf if edits else 0.0
    return edits / length
