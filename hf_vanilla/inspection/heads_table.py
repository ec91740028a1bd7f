"""What is known of a model's heads as a table to read, and as JSON. Here layers and heads are counted from 1."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from .heads import HeadReport, Point
from .masking import Head
from .statistics import ROLES, STATISTICS, VOITA
from .syntax import MARGIN, MIN_COUNT, Relation

COLUMNS = {
    "previous": "prev",
    "same": "same",
    "next": "next",
    "first": "first",
    "sentence_end": "end",
    "punctuation": "punct",
    "rarest": "rare",
    "entropy_share": "entropy",
    "distance": "dist",
    "confidence": "conf",
}
"""Statistics in the table, and what they are called there."""

NO_ROLE = "no role found"


def as_table(report: HeadReport) -> str:
    """A line for each head, and what the columns are; relations and the pruning curve under it."""
    names = ["head", *COLUMNS.values(), "gradient", "loss", "most like", "role"]
    rows = [names, *(row_of(report, head) for head in report.importance)]
    parts = [f"{report.pairs}; loss {report.loss:.4f} per target token", aligned(rows), "\n".join(notes_on(report))]
    if report.relations is not None:
        parts.append(relations_table(report.relations))
    if report.curves is not None:
        parts.append(curve_table(report.curves.points, report.curves.reverse))
    return "\n\n".join(parts)


def row_of(report: HeadReport, head: Head) -> list[str]:
    values, importance = report.of(head), report.importance[head]
    near = report.nearest.get(head)
    return [
        str(head),
        *(shown(values[name]) for name in COLUMNS),
        f"{importance.gradient:.4f}",
        f"{importance.masking:+.4f}",
        "" if near is None else f"{near[0].layer + 1}.{near[0].head + 1} ({near[1]:.2f})",
        ", ".join(names_of_roles(report, head)) or NO_ROLE,
    ]


def names_of_roles(report: HeadReport, head: Head) -> list[str]:
    relations = [f"{each.name} {each.direction}" for each in report.relations_found(head)]
    return [role.name for role in report.roles(head)] + relations


def shown(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """The first and the last column on the left, the others on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        middle = (cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True))
        lines.append("  ".join([row[0].ljust(widths[0]), *middle, row[-1]]).rstrip())
    return "\n".join(lines)


def notes_on(report: HeadReport) -> Iterator[str]:
    yield "Layers and heads are counted from 1. Shares are means over the queries that see such a token."
    for name, column in COLUMNS.items():
        yield f"{column}: {STATISTICS[name]}"
    yield "gradient: mean over the pairs of |dL/dxi|, where xi multiplies what the head adds (Michel et al. 2019)"
    yield "loss: mean change of the pairs' loss without the head; negative: the model is better without it"
    yield "most like: layer.head of the same kind with the smallest Jensen-Shannon divergence (0 alike, 1 bit never)"
    for what, value in report.agreement.items():
        found = shown(value) or "unknown"
        yield f"rank correlation (Spearman) of |dL/dxi| and the change of the loss ({what}): {found}"
    for role in ROLES:
        yield f"{role.name}: {role.statistic} of {role.at_least:g} or more ({role.source})"


def relations_table(relations: Sequence[Relation]) -> str:
    rows = [["relation", "count", "distance", "baseline", "best", "head"]]
    for each in relations:
        best = int(each.accuracy.argmax())
        layer, head = divmod(best, each.accuracy.shape[1])
        mark = " *" if (layer, head) in each.finders else ""
        cells = [f"{each.distance:+d}", f"{each.baseline:.2f}", f"{each.accuracy[layer, head]:.2f}"]
        rows.append([f"{each.name} {each.direction}", str(each.count), *cells, f"{Head('encoder', layer, head)}{mark}"])
    note = (
        f"* better than the most frequent distance by {MARGIN:g} or more ({VOITA}), in {MIN_COUNT} or more cases; "
        "relations are of words, whose tokens' attention is summed over keys and averaged over queries"
    )
    return f"{aligned(rows)}\n{note}"


def curve_table(points: Sequence[Point], reverse: Sequence[Point]) -> str:
    names = [*points[0].scores]
    rows = [["heads left", "loss", *names, "loss if the most important go first"]]
    for one, other in zip(points, reverse, strict=True):
        cells = [f"{one.loss:.4f}", *(f"{one.scores[name]:.1f}" for name in names)]
        rows.append([str(one.heads_left), *cells, f"{other.loss:.4f}"])
    note = "the order is that of the gradient, divided by its L2 norm over the heads of a layer (Michel et al. 2019)"
    return f"{aligned(rows)}\n{note}"


# --- JSON -----------------------------------------------------------------------------------------------------------


def as_dict(report: HeadReport) -> dict[str, Any]:
    found: dict[str, Any] = {
        "pairs": report.pairs,
        "loss": report.loss,
        "counted_from": 1,
        "statistics": STATISTICS,
        "roles": [vars(role) for role in ROLES],
        "rank_correlation_of_gradient": {name: known(value) for name, value in report.agreement.items()},
        "heads": [facts_of(report, head) for head in report.importance],
    }
    if report.relations is not None:
        found["relations"] = [facts_of_relation(each) for each in report.relations]
    if report.curves is not None:
        curves = report.curves
        found["pruning"] = {
            "order": [place_of(head) for head in curves.order],
            "least_important_first": [vars(each) for each in curves.points],
            "most_important_first": [{"heads_left": each.heads_left, "loss": each.loss} for each in curves.reverse],
        }
    return found


def facts_of(report: HeadReport, head: Head) -> dict[str, Any]:
    near = report.nearest.get(head)
    return {
        **place_of(head),
        "statistics": {name: known(value) for name, value in report.of(head).items()},
        "importance": vars(report.importance[head]),
        "most_like": None if near is None else place_of(near[0]) | {"divergence": near[1]},
        "roles": [role.name for role in report.roles(head)],
        "relations": [{"name": each.name, "direction": each.direction} for each in report.relations_found(head)],
    }


def facts_of_relation(relation: Relation) -> dict[str, Any]:
    return vars(relation) | {"accuracy": relation.accuracy.tolist()}


def place_of(head: Head) -> dict[str, Any]:
    return {"kind": head.kind, "layer": head.layer + 1, "head": head.head + 1}


def known(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value
