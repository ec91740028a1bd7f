"""
Hypotheses and references to a report: BLEU, chrF, exact match and error rates, all of them in percent.

The metrics are functions. `TextMetric` offers each of them as an `evaluate.Metric`; `evaluate.load("bleu")` would
download code from the Hub and run it.
"""

import difflib
import inspect
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import evaluate
from datasets import Features, List, Value
from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

References = Sequence[str] | Sequence[Sequence[str]]  # of each prediction: one, or a list of any length but 0
Scores = dict[str, float | str]


def bleu(predictions: list[str], references: list[list[str]], lowercase: bool = False, tokenize: str = "13a") -> Scores:
    """
    BLEU of the corpus (Papineni et al., 2002) by sacrebleu (Post, 2018), whose signature says what was computed.

    Args:
        tokenize: one of sacrebleu's tokenizers; "none" if the texts are tokenised already.
    """
    if tokenize not in BLEU.TOKENIZERS:
        raise unknown("tokenizer", tokenize, BLEU.TOKENIZERS)
    metric = BLEU(lowercase=lowercase, tokenize=tokenize, force=tokenize == "none")  # force: tokenised text, no warning
    score = metric.corpus_score(predictions, reference_streams(references))
    precisions = {f"bleu_precision_{order}": precision for order, precision in enumerate(score.precisions, 1)}
    signature = str(metric.get_signature())
    return {"bleu": score.score, **precisions, "bleu_brevity_penalty": score.bp, "bleu_signature": signature}


def chrf(predictions: list[str], references: list[list[str]], lowercase: bool = False) -> Scores:
    """chrF2 of the corpus (Popović, 2015) by sacrebleu: n-grams of 1 to 6 characters, recall counts twice."""
    metric = CHRF(lowercase=lowercase)
    score = metric.corpus_score(predictions, reference_streams(references))
    return {"chrf": score.score, "chrf_signature": str(metric.get_signature())}


def exact_match(predictions: list[str], references: list[list[str]]) -> Scores:
    """The share of predictions that are equal to one of their references, white space and case included."""
    matches = sum(prediction in group for prediction, group in zip(predictions, references, strict=True))
    return {"exact_match": 100 * matches / len(predictions)}


def character_error_rate(predictions: list[str], references: list[list[str]]) -> Scores:
    """Inserted, deleted and replaced characters (code points, white space too) per character of the references."""
    return {"character_error_rate": error_rate("characters", predictions, references)}


def token_error_rate(predictions: list[str], references: list[list[str]]) -> Scores:
    """Inserted, deleted and replaced tokens per token of the references: error rate of words, or of spaced phonemes."""
    groups = [[reference.split() for reference in group] for group in references]
    return {"token_error_rate": error_rate("tokens", [prediction.split() for prediction in predictions], groups)}


Metric = Callable[..., Scores]
METRICS: dict[str, Metric] = {
    function.__name__: function for function in (bleu, chrf, exact_match, character_error_rate, token_error_rate)
}


def report(
    predictions: Sequence[str], references: References, metrics: Iterable[str] = tuple(METRICS), **options: bool | str
) -> Scores:
    """All scores in one flat dictionary. Each option, `lowercase` say, goes to those metrics that have it."""
    chosen = [metric_with(options, name) for name in metrics]
    hypotheses, groups = checked(predictions, references)
    scores: Scores = {}
    for metric in chosen:
        scores |= metric(hypotheses, groups)
    return scores


def metric_with(options: dict[str, bool | str], name: str) -> Metric:
    """The metric of that name, with those of the options that it has."""
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    known = {option: None for metric in METRICS.values() for option in options_of(metric)}
    for option in options:
        if option not in known:
            raise unknown("option", option, known)
    own = options_of(METRICS[name])
    return partial(METRICS[name], **{option: value for option, value in options.items() if option in own})


def options_of(metric: Metric) -> list[str]:
    return list(inspect.signature(metric).parameters)[2:]  # after predictions and references


class TextMetric(evaluate.Metric):
    """
    A metric of this module as one of `evaluate`'s, to `add`, `add_batch`, `compute` and `evaluate.combine`.

    Args:
        name: One of METRICS. The keys of its scores begin with it.
        options: Those of the function, `lowercase` say.
    """

    def __init__(self, name: str, **options: bool | str) -> None:
        self.metric_name = name
        self.metric = metric_with(options, name)
        super().__init__(config_name=name, keep_in_memory=True)
        self.info.module_name = name  # evaluate has given it that of the class

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=inspect.getdoc(METRICS[self.metric_name]) or "",
            citation="",
            features=Features({"predictions": Value("string"), "references": List(Value("string"))}),
        )

    # evaluate would silently turn lists and numbers among texts into text: all that is added is checked here.

    def add(self, *, prediction: str, reference: str | Sequence[str]) -> None:
        """One prediction and its reference, or the list of its references."""
        self.add_batch(predictions=[prediction], references=[reference])

    def add_batch(self, *, predictions: Sequence[str], references: References) -> None:
        """Some predictions and as many references, or lists of references."""
        hypotheses, groups = checked(predictions, references)
        super().add_batch(predictions=hypotheses, references=groups)

    def compute(self, *, predictions: Sequence[str] | None = None, references: References | None = None) -> Scores:
        """The scores of these and of all that were added since the last time."""
        if predictions is not None or references is not None or not len(self):
            self.add_batch(predictions=predictions or [], references=references or [])
        scores: Scores = super().compute()
        return scores

    def _compute(self, predictions: list[str], references: list[list[str]]) -> Scores:
        return self.metric(predictions, references)


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


def error_rate(unit: str, predictions: Sequence[Sequence[str]], references: Sequence[list[Any]]) -> float:
    """Edits of the whole corpus / length of its references; of several references, the one with the lowest rate."""
    nearest = list(map(nearest_reference, predictions, references))
    edits = sum(edits for edits, _ in nearest)
    length = sum(length for _, length in nearest)
    if length == 0:
        raise ValueError(f"error rate: {edits} edits per 0 {unit} of reference; there must be at least 1")
    return 100 * edits / length


def nearest_reference(prediction: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Edits and length of the reference with the fewest edits for its length, whatever the order of the references."""
    candidates = [(Levenshtein.distance(prediction, reference), len(reference)) for reference in references]
    return min(candidates, key=lambda candidate: (edits_per_unit(*candidate), candidate))


def edits_per_unit(edits: int, length: int) -> float:
    if length == 0:
        return math.inf if edits else 0.0
    return edits / length
