"""Alignments as JSON. Layers and heads are counted from 1, words and characters from 0 as in the format of Pharaoh."""

from typing import Any

from ..inference.alignments import Alignment, AttentionMap
from ..inference.units import line_of, units_of
from .align import AlignReport, in_words


def as_dict(report: AlignReport, soft: bool = False) -> dict[str, Any]:
    """
    Args:
        soft: Also the weights of each target unit, and what is left for the end of the sentence.
    """
    settings = report.settings
    found: dict[str, Any] = {
        "pairs": report.pairs.name,
        "map": map_of(settings.attention),
        "reason": report.reason,
        "source_unit": settings.source_unit,
        "target_unit": settings.target_unit,
    }
    if report.errors is not None and report.moves is not None:
        found["error"] = report.error
        found["errors"] = [map_of(attention) | {"error": error} for attention, error in report.errors.items()]
        found["errors_if_moved"] = [{"source": s, "target": t, "error": e} for (s, t), e in report.moves.items()]
    texts = zip(report.pairs.sources, report.pairs.targets, report.alignments, strict=True)
    found["alignments"] = [
        {
            "source": pieces(line_of(source), settings.source_unit),
            "target": pieces(target, settings.target_unit),
            **of_pair(each, soft),
        }
        for source, target, each in texts
    ]
    return found


def map_of(attention: AttentionMap) -> dict[str, Any]:
    head = "mean" if attention.head is None else attention.head + 1
    return {"layer": attention.layer + 1, "head": head, "row": attention.row, "words": in_words(attention)}


def of_pair(alignment: Alignment, soft: bool) -> dict[str, Any]:
    links: dict[str, Any] = {"links": [list(link) for link in alignment.links]}
    weights = {"weights": alignment.weights.tolist(), "outside": alignment.outside.tolist()}
    return links | (weights if soft else {})


def pieces(text: str, unit: Any) -> list[str]:
    return [text[first:last] for first, last in units_of(text, unit)]
