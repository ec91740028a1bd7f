"""How good the translations of test sets are, and whether another system is better; as a table and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .examples import Examples
from .metrics import Counts, Metric, Scores
from .significance import RESAMPLES, SEED, Confidence, confidence_of, p_value, resample, scores_of_resamples


@dataclass(frozen=True)
class System:
    """What is measured: a name, and its translations of all rows."""

    name: str
    translations: Sequence[str]


@dataclass(frozen=True)
class Outcome:
    """
    How good a system is on a test set.

    Args:
        counts: For each metric its counts, a row for each example.
        confidence: By the names of the metrics.
        baseline: The system that it is compared with.
        p_values: By the names of the metrics, if there is a baseline.
    """

    system: str
    examples: Examples
    hypotheses: Sequence[str]
    metrics: Sequence[Metric]
    counts: Sequence[Counts]
    scores: Scores
    confidence: Mapping[str, Confidence]
    baseline: "Outcome | None" = None
    p_values: Mapping[str, float] = field(default_factory=dict)

    @property
    def systems(self) -> list["Outcome"]:
        """This one, and the one that it is compared with if there is one."""
        return [self] if self.baseline is None else [self, self.baseline]


def outcome_of(
    examples: Examples, metrics: Sequence[Metric], system: System, baseline: System | None = None
) -> Outcome:
    """Measure a system on a test set, and compare it with another one."""
    references = [list(group) for group in examples.references]
    systems = [system] if baseline is None else [system, baseline]
    hypotheses = [examples.of(each.translations) for each in systems]
    counts = [[metric.counts(lines, references) for metric in metrics] for lines in hypotheses]
    resamples = resampled_scores(metrics, counts)
    found = [
        Outcome(
            each.name,
            examples,
            hypotheses[number],
            metrics,
            counts[number],
            scores_of(metrics, counts[number]),
            {metric.name: confidence_of(resamples[number][metric.name]) for metric in metrics},
        )
        for number, each in enumerate(systems)
    ]
    if baseline is None:
        return found[0]
    p_values = {
        name: p_value(number_of(found[0], name) - number_of(found[1], name), scores, resamples[1][name])
        for name, scores in resamples[0].items()
    }
    return Outcome(**vars(found[0]) | {"baseline": found[1], "p_values": p_values})


def scores_of(metrics: Sequence[Metric], counts: Sequence[Counts]) -> Scores:
    scores: Scores = {}
    for metric, rows in zip(metrics, counts, strict=True):
        scores |= metric.scores(rows, RESAMPLES, SEED)
    return scores


def resampled_scores(metrics: Sequence[Metric], counts: Sequence[Sequence[Counts]]) -> list[dict[str, Any]]:
    """For each system, by the name of each metric, the scores of the resamples: the same ones for all of them."""
    blocks = [rows for system in counts for rows in system]
    ends = np.cumsum([block.shape[1] for block in blocks])[:-1]
    sums = iter(np.split(resample(np.hstack(blocks)), ends, axis=1))
    return [{metric.name: scores_of_resamples(metric, next(sums)) for metric in metrics} for _ in counts]


def number_of(outcome: Outcome, metric: str) -> float:
    return float(outcome.scores[metric])


def as_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What is measured on each test set, with the keys of report.json."""
    return {outcome.examples.name: _as_json(outcome) for outcome in outcomes}


def _as_json(outcome: Outcome) -> dict[str, Any]:
    facts = {
        "system": outcome.system,
        "sentences": len(outcome.hypotheses),
        "scores": outcome.scores,
        "confidence": {name: asdict(confidence) for name, confidence in outcome.confidence.items()},
    }
    if outcome.baseline is None:
        return facts
    other = _as_json(outcome.baseline)
    del other["sentences"]
    return facts | {"against": other | {"p_values": dict(outcome.p_values)}}


def as_table(outcomes: Sequence[Outcome]) -> str:
    """A row for each metric, a column for each test set; beside it the other system and whether they differ."""
    columns = [column for outcome in outcomes for column in columns_of(outcome)]
    names = ["", "sentences", *(metric.name for metric in outcomes[0].metrics)]
    rows = list(zip(names, *columns, strict=True))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    return "\n".join([*lines, "", *notes_on(outcomes)])


def columns_of(outcome: Outcome) -> list[list[str]]:
    names = [metric.name for metric in outcome.metrics]
    own = [outcome.examples.name, f"{len(outcome.hypotheses):,}", *(shown(outcome, name) for name in names)]
    if outcome.baseline is None:
        return [own]
    other = [outcome.baseline.system, "", *(shown(outcome.baseline, name) for name in names)]
    return [own, other, ["p", "", *(shown_p(outcome.p_values[name]) for name in names)]]


def shown(outcome: Outcome, name: str) -> str:
    return f"{outcome.scores[name]:.2f} ± {outcome.confidence[name].ci:.2f}"


def shown_p(p: float) -> str:
    return f"{p:.3f}{'*' if p < 0.05 else ' '}"


def notes_on(outcomes: Sequence[Outcome]) -> list[str]:
    """What the numbers mean, and the signatures: those of sets with other numbers of references differ."""
    notes = [f"± is half of the 95 % confidence interval, of {RESAMPLES} bootstrap resamples."]
    if any(outcome.baseline for outcome in outcomes):
        notes.append("p: how likely such a difference is if both are equally good; * where that is less than 0.05.")
    return notes + signatures_of(outcomes)


def signatures_of(outcomes: Sequence[Outcome]) -> list[str]:
    signed = [f"{metric.name}_signature" for metric in outcomes[0].metrics]
    found = [f"{name}: {outcome.scores[name]}" for name in signed for outcome in outcomes if name in outcome.scores]
    return list(dict.fromkeys(found))
