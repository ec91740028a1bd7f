"""
`report.json` in a run directory: what was measured, and with which weights.

It maps the name of each test set to its scores with their confidence intervals, to the SHA-256 of the weights that
were measured, and to a few samples. Weights may be replaced later, by more training or another average: their old
scores stay in the report, but they are not scores of the run any more.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..files import sha256_of, write_whole
from ..run_directory import REPORT, WEIGHTS
from .outcome import Outcome
from .significance import Confidence


@dataclass(frozen=True)
class Sample:
    """A source in its parts, the model's output and the reference."""

    source: Sequence[str]
    output: str
    reference: str


@dataclass(frozen=True)
class Measurement:
    """
    Scores on a test set.

    Args:
        weights: SHA-256 of the weights that were measured; None if the report does not say it, as the first reports.
        confidence: Of each score that has a confidence interval.
        sentences: How many there were; None if the report does not say it.
    """

    scores: Mapping[str, float | str]
    weights: str | None = None
    samples: Sequence[Sample] = ()
    confidence: Mapping[str, Confidence] = field(default_factory=dict)
    sentences: int | None = None


def weights_of(run: Path) -> str:
    """The SHA-256 of the weights that are in the run now."""
    return sha256_of(run / WEIGHTS)


def read_report(run: Path) -> dict[str, Measurement]:
    """What was measured, by the name of the test set. Nothing, if there is no such report."""
    try:
        report = json.loads((run / REPORT).read_text(encoding="utf-8"))
        return {name: _measurement(entry) for name, entry in report.items()}
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return {}


def _measurement(entry: dict[str, Any]) -> Measurement:
    if not isinstance(entry.get("scores"), dict):  # the first reports had the scores alone
        return Measurement(entry)
    samples = tuple(Sample(**sample) for sample in entry.get("samples", ()))
    confidence = {name: Confidence(**found) for name, found in entry.get("confidence", {}).items()}
    return Measurement(entry["scores"], entry.get("weights"), samples, confidence, entry.get("sentences"))


def add_to_report(run: Path, test_set: str, measurement: Measurement) -> None:
    """Add a measurement; it replaces an earlier one on the same test set, and those on the parts of that."""
    kept = {name: entry for name, entry in read_report(run).items() if not is_part(name, test_set)}
    report = kept | {test_set: measurement}
    write_whole(run / REPORT, json.dumps({name: asdict(entry) for name, entry in report.items()}, indent=1))


def part_of(test_set: str, name: str) -> str:
    """The name of a part of a test set: of one of the corpora of a split."""
    return f"{test_set}: {name}"


def is_part(name: str, test_set: str) -> bool:
    return name.startswith(part_of(test_set, ""))


def measurement_of(outcome: Outcome, weights: str, samples: int) -> Measurement:
    """What the report says of an outcome, with its first few examples as samples."""
    examples = outcome.examples
    first = zip((examples.sources or [])[:samples], outcome.hypotheses, examples.references, strict=False)
    shown = [Sample(source, found, references[0]) for source, found, references in first]
    return Measurement(outcome.scores, weights, shown, outcome.confidence, len(outcome.hypotheses))
