"""
Our metrics in the form of the library `evaluate`.

`evaluate.load("bleu")` would download code from the Hub and run it. This module is apart from the metrics because
importing `evaluate` takes seconds.
"""

import inspect
from collections.abc import Sequence

import evaluate
from datasets import Features, List, Value

from .metrics import METRICS, Option, References, Scores, checked, metrics_with


class TextMetric(evaluate.Metric):
    """
    One of METRICS as a metric of `evaluate`, to `add`, `add_batch`, `compute` and `evaluate.combine`.

    Args:
        name: One of METRICS. The keys of its scores begin with it.
        options: Those of the metric, `lowercase` say.
    """

    def __init__(self, name: str, **options: Option) -> None:
        self.metric_name = name
        (self.metric,) = metrics_with(options, [name])
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
        return self.metric.scores(self.metric.counts(predictions, references))
