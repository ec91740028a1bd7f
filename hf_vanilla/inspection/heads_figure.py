"""The heads of a model as a picture: layers by heads, and the pruning curve. Needs the extra `plots`."""

from pathlib import Path
from typing import Any

import numpy as np

from .figure import save_figure
from .heads import Curves, HeadReport
from .masking import Head
from .reading import KINDS

SHORT = {
    "previous token": "previous",
    "same token": "same",
    "next token": "next",
    "first token": "first",
    "sentence end": "end",
    "punctuation": "punct.",
    "rarest token": "rarest",
}
"""Roles that are shown in a cell by another name."""


def draw_heads(report: HeadReport, file: Path) -> Path:
    """Write the picture (.svg, .png or .pdf): the change of the loss without each head as a colour, roles as words."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    kinds = [kind for kind in KINDS if kind in report.statistics]
    panels = len(kinds) + (report.curves is not None)
    heads = max(values["entropy"].shape[1] for values in report.statistics.values())
    layers = max(values["entropy"].shape[0] for values in report.statistics.values())
    size = (panels * max(3.2, 0.75 * heads + 1), max(3.0, 0.6 * layers + 1.6))
    figure, axes = pyplot.subplots(1, panels, figsize=size, squeeze=False, layout="constrained")
    limit = max(abs(each.masking) for each in report.importance.values()) or 1.0
    for axis, kind in zip(axes[0], kinds, strict=False):
        picture = draw_kind(axis, report, kind, limit)
    figure.colorbar(picture, ax=list(axes[0, : len(kinds)]), label="change of the loss without the head", shrink=0.8)
    if report.curves is not None:
        draw_curves(axes[0, -1], report.curves)
    save_figure(figure, file)
    pyplot.close(figure)
    return file


def draw_kind(axis: Any, report: HeadReport, kind: Any, limit: float) -> Any:
    layers, heads = report.statistics[kind]["entropy"].shape
    changes = np.zeros((layers, heads))
    for head, importance in report.importance.items():
        if head.kind == kind:
            changes[head.layer, head.head] = importance.masking
    picture = axis.imshow(changes, cmap="PuOr_r", vmin=-limit, vmax=limit, aspect="auto")
    for layer, head in np.ndindex(layers, heads):
        roles = [SHORT.get(role.name, role.name) for role in report.roles(Head(kind, layer, head))]
        is_dark = abs(changes[layer, head]) > 0.6 * limit
        text = "\n".join([f"{changes[layer, head]:+.3f}", *roles[:2]])
        axis.text(head, layer, text, ha="center", va="center", fontsize=7, color="white" if is_dark else "black")
    axis.set_title({"encoder": "encoder", "decoder": "decoder", "cross": "decoder to encoder"}[kind])
    axis.set_xticks(range(heads), [str(number + 1) for number in range(heads)])
    axis.set_yticks(range(layers), [str(number + 1) for number in range(layers)])
    axis.set_xlabel("head")
    axis.set_ylabel("layer")
    return picture


def draw_curves(axis: Any, curves: Curves) -> None:
    left = [point.heads_left for point in curves.points]
    axis.plot(left, [point.loss for point in curves.points], marker="o", label="least important first")
    axis.plot(left, [point.loss for point in curves.reverse], marker="x", ls="--", label="most important first")
    axis.set_xlabel("heads left")
    axis.set_ylabel("loss")
    axis.set_title("pruning by gradient")
    axis.invert_xaxis()
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)  # below the curves
    other = axis.twinx()
    name = next(iter(curves.points[0].scores))
    other.plot(left, [point.scores[name] for point in curves.points], color="tab:green", marker=".", ls=":")
    other.set_ylabel(f"{name.replace('_', ' ')} (dotted)")
