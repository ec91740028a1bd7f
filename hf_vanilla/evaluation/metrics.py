"""
Hypotheses and references to a report: BLEU, chrF, exact match and error rates, all of them in percent.

`evaluate.load("bleu")` would fetch code from the Hub and run it. These are `evaluate.Metric`s too, so they `add`,
`add_batch`, `compute` and `combine` like the others, but they are made directly and need neither network nor files.
"""

import difflib
import inspect
import itertools
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import evaluate
from datasets import Features, List, Value
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

References = Sequence[str] | Sequence[Sequence[str]]  # of each prediction: one, or a list of any length but 0
Scores = dict[str, float | str]


class TextMetric(evaluate.Metric):
    """Texts against one or several references each. The keys of its scores begin with its name."""

    def __init__(self) -> None:
        super().__init__(keep_in_memory=True)  # else evaluate locks a file in a directory that all processes share

    def _build_data_dir(self) -> str:
        """evaluate would make a directory in the user's cache here, even for what stays in memory."""
        return ""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=inspect.getdoc(self) or "",
            citation="",
            features=Features({"predictions": Value("string"), "references": List(Value("string"))}),
        )

    def add(self, *, prediction: str, reference: str | Sequence[str]) -> None:
        """One prediction and its reference, or the list of its references."""
        self.add_batch(predictions=[prediction], references=[reference])

    def add_batch(self, *, predictions: Sequence[str], references: References) -> None:
        """Some predictions and as many references, or lists of references."""
        hypotheses, groups = texts("predictions", predictions), reference_groups(references)
        check_same_number(hypotheses, groups)
        super().add_batch(predictions=hypotheses, references=groups)

    def compute(self, *, predictions: Sequence[str] | None = None, references: References | None = None) -> Scores:
        """The scores of these and of all that were added since the last time."""
        if predictions is not None or references is not None or not len(self):
            self.add_batch(predictions=predictions or [], references=references or [])
        scores: Scores = super().compute()
        return scores


class Bleu(TextMetric):
    """
    BLEU of the corpus (Papineni et al., 2002) by sacrebleu (Post, 2018), whose signature says what was computed.

    Args:
        tokenize: one of sacrebleu's tokenizers; "none" if the texts are tokenised already.
    """

    def __init__(self, lowercase: bool = False, tokenize: str = "13a") -> None:
        if tokenize not in BLEU.TOKENIZERS:
            raise unknown("tokenizer", tokenize, BLEU.TOKENIZERS)
        # force: do not warn that the texts look tokenised.
        self._bleu = BLEU(lowercase=lowercase, tokenize=tokenize, force=tokenize == "none")
        super().__init__()

    def _compute(self, predictions: list[str], references: list[list[str]]) -> Scores:
        bleu = self._bleu.corpus_score(predictions, reference_streams(references))
        precisions = {f"bleu_precision_{order}": precision for order, precision in enumerate(bleu.precisions, 1)}
        signature = str(self._bleu.get_signature())
        return {"bleu": bleu.score, **precisions, "bleu_brevity_penalty": bleu.bp, "bleu_signature": signature}


class Chrf(TextMetric):
    """chrF2 of the corpus (Popović, 2015) by sacrebleu: n-grams of 1 to 6 characters, recall counts twice."""

    def __init__(self, lowercase: bool = False) -> None:
        self._chrf = CHRF(lowercase=lowercase)
        super().__init__()

    def _compute(self, predictions: list[str], references: list[list[str]]) -> Scores:
        chrf = self._chrf.corpus_score(predictions, reference_streams(references))
        return {"chrf": chrf.score, "chrf_signature": str(self._chrf.get_signature())}


class ExactMatch(TextMetric):
    """The share of predictions that are equal to one of their references, white space and case included."""

    def _compute(self, predictions: list[str], references: list[list[str]]) -> Scores:
        matches = sum(prediction in group for prediction, group in zip(predictions, references, strict=True))
        return {"exact_match": 100 * matches / len(predictions)}


class ErrorRate(TextMetric, ABC):
    """Edits of the whole corpus / length of its references; of several references, the one with the lowest rate."""

    unit: str

    @abstractmethod
    def split(self, text: str) -> Sequence[str]:
        """The units that are counted."""

    def _compute(self, predictions: list[str], references: list[list[str]]) -> Scores:
        nearest = [
            nearest_reference(self.split(prediction), [self.split(reference) for reference in group])
            for prediction, group in zip(predictions, references, strict=True)
        ]
        edits = sum(edits for edits, _ in nearest)
        length = sum(length for _, length in nearest)
        if length == 0:
            raise ValueError(f"{self.name}: {edits} edits per 0 {self.unit} of reference; there must be at least 1")
        return {self.name: 100 * edits / length}


class CharacterErrorRate(ErrorRate):
    """Inserted, deleted and replaced characters (code points, white space too) per character of the references."""

    unit = "characters"

    def split(self, text: str) -> Sequence[str]:
        return text


class TokenErrorRate(ErrorRate):
    """Inserted, deleted and replaced tokens per token of the references: error rate of words, or of spaced phonemes."""

    unit = "tokens"

    def split(self, text: str) -> Sequence[str]:
        return text.split()


METRICS: dict[str, type[evaluate.Metric]] = {
    "bleu": Bleu,
    "chrf": Chrf,
    "exact_match": ExactMatch,
    "character_error_rate": CharacterErrorRate,
    "token_error_rate": TokenErrorRate,
}


def report(
    predictions: Sequence[str], references: References, metrics: Iterable[str] = tuple(METRICS), **options: bool | str
) -> Scores:
    """All scores in one flat dictionary. Each option, `lowercase` say, goes to those metrics that have it."""
    chosen = [make_metric(name, options) for name in metrics]
    scores: Scores = {}
    for metric in chosen:
        scores |= metric.compute(predictions=predictions, references=references)
    return scores


def make_metric(name: str, options: dict[str, bool | str]) -> evaluate.Metric:
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    known = {option: None for metric in METRICS.values() for option in inspect.signature(metric).parameters}
    for option in options:
        if option not in known:
            raise unknown("option", option, known)
    own = inspect.signature(METRICS[name]).parameters
    return METRICS[name](**{option: value for option, value in options.items() if option in own})


def unknown(what: str, name: str, known: Collection[str]) -> ValueError:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)
    return ValueError(f"unknown {what} {name!r}: the nearest is {nearest[0]!r}, of {', '.join(known)}")


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


def check_same_number(predictions: list[str], references: list[list[str]]) -> None:
    if not len(predictions) == len(references) > 0:
        counts = f"{len(predictions)} predictions and {len(references)} references"
        raise ValueError(f"{counts}: there must be as many of each, and at least 1")


def reference_streams(references: list[list[str]]) -> list[Sequence[str]]:
    """As sacrebleu wants them: the first reference of every sentence, then the second or None, and so on."""
    return list(itertools.zip_longest(*references))


def nearest_reference(prediction: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Edits and length of the reference with the fewest edits for its length, whatever the order of the references."""
    candidates = [(edit_distance(prediction, reference), len(reference)) for reference in references]
    return min(candidates, key=lambda candidate: (edits_per_unit(*candidate), candidate))


def edits_per_unit(edits: int, length: int) -> float:
    if length == 0:
        return math.inf if edits else 0.0
    return edits / length


def edit_distance(left: Sequence[str], right: Sequence[str]) -> int:
    """
    The fewest insertions, deletions and replacements that make `right` of `left` (Levenshtein).

    The table of this has a row for each symbol of `left` and a column for each of `right`; cell by cell it takes
    seconds for ten thousand sentences. But neighbours differ by 1 at most, so two integers with a bit for each row
    hold a column, and a few operations on them make the next (Myers, 1999; written as by Hyyrö, 2003).
    """
    rows_of: dict[str, int] = defaultdict(int)
    for row, symbol in enumerate(left):
        rows_of[symbol] |= 1 << row
    all_rows = (1 << len(left)) - 1
    more_than_above, less_than_above = all_rows, 0  # the column before the first: 0, 1, 2, ...
    for symbol in right:
        equal = rows_of.get(symbol, 0)
        carried = ((equal & more_than_above) + more_than_above) ^ more_than_above
        like_diagonal = carried | equal | less_than_above
        # Moved one row down, where they are needed next; from above comes the top row, which counts 0, 1, 2, ...
        more_than_left = (less_than_above | ~(like_diagonal | more_than_above)) << 1 | 1
        less_than_left = (like_diagonal & more_than_above) << 1
        more_than_above = (less_than_left | ~(like_diagonal | more_than_left)) & all_rows
        less_than_above = like_diagonal & more_than_left & all_rows
    return len(right) + more_than_above.bit_count() - less_than_above.bit_count()
