"""Softmax over dot products of many dimensions, with and without the scaling."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .lesson import BLUE, ORANGE, Lesson, Table

SIZES = (1, 4, 16, 64, 256, 1024, 4096)
KEYS = 10
QUERIES = 3000
TOGETHER = 100  # so that the largest size needs little memory


class Saturation(NamedTuple):
    """
    Means over queries. The slope is the Frobenius norm of the softmax's Jacobian, diag(p) - p p^T.
    """

    largest: float
    entropy: float
    slope: float


def saturation_of(scores: Tensor) -> Saturation:
    """
    Args:
        scores: (queries, keys).
    """
    weights = scores.softmax(-1)
    entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1) / math.log(scores.shape[-1])
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None]
    return Saturation(
        float(weights.max(-1).values.mean()), float(entropy.mean()), float(jacobian.flatten(1).norm(dim=1).mean())
    )


def scores_of(size: int, generator: torch.Generator) -> Tensor:
    """Dot products of queries and keys whose components have mean 0 and variance 1."""
    found = []
    for _ in range(QUERIES // TOGETHER):
        query = torch.randn(TOGETHER, size, 1, generator=generator, dtype=torch.float64)
        key = torch.randn(TOGETHER, KEYS, size, generator=generator, dtype=torch.float64)
        found.append((key @ query)[..., 0])
    return torch.cat(found)


def saturation_lesson() -> Lesson:
    generator = torch.Generator().manual_seed(0)
    scores = {size: scores_of(size, generator) for size in SIZES}
    plain = {size: saturation_of(scores[size]) for size in SIZES}
    scaled = {size: saturation_of(scores[size] / math.sqrt(size)) for size in SIZES}

    def draw(figure: Any) -> None:
        for axis, field, name in zip(
            figure.subplots(1, 2), ("largest", "slope"), ("mean largest weight", "slope of the softmax"), strict=True
        ):
            axis.plot(SIZES, [getattr(plain[size], field) for size in SIZES], "o-", color=ORANGE, label="not scaled")
            axis.plot(SIZES, [getattr(scaled[size], field) for size in SIZES], "s--", color=BLUE, label="by 1/√d")
            axis.set_xscale("log", base=2)
            axis.set_xlabel("d, the size of queries and keys")
            axis.set_ylabel(name)
            axis.set_ylim(bottom=0)
        axis.legend(frameon=False)

    columns = ["d", "variance of q · k", "largest weight", "scaled", "entropy / ln 10", "scaled", "slope", "scaled"]
    rows = [
        [
            size,
            float(scores[size].var()),
            *(each for pair in zip(plain[size], scaled[size], strict=True) for each in pair),
        ]
        for size in SIZES
    ]
    return Lesson(
        "saturation",
        "Without the scaling softmax takes one key, and hardly learns",
        "We suspect that for large values of d_k, the dot products grow large in magnitude, pushing the softmax "
        "function into regions where it has extremely small gradients. To counteract this effect, we scale the dot "
        "products by 1/√d_k.",
        "Vaswani et al. (2017), section 3.2.1",
        [
            "True, of queries and keys whose components are independent, with mean 0 and variance 1: the variance "
            f"of their dot product is d. With {KEYS} keys the largest weight is {plain[1].largest:.2f} on average at "
            f"d = 1, {plain[64].largest:.2f} at 64 and {plain[4096].largest:.2f} at 4,096; scaled, it is about "
            f"{scaled[64].largest:.2f} from 64 on.",
            f"The slope of the softmax, the norm of its Jacobian, falls from {plain[4].slope:.2f} at d = 4 to "
            f"{plain[4096].slope:.3f} at 4,096, and stays at {scaled[4096].slope:.2f} with the scaling. “Extremely "
            "small” is more than these numbers say at the size of the paper: at d = 64 it is still "
            f"{plain[64].slope:.2f}.",
            "What this does not show: a model need not have such queries and keys. With first weights as small as "
            "ours, or with normalised queries and keys, dot products begin smaller; a trained model makes them as "
            "large as it wants.",
        ],
        "Left: the mean largest softmax weight of ten keys by the size of queries and keys: near 1 without scaling, "
        "constant with it. Right: the norm of the Jacobian of the softmax, which falls without scaling.",
        [Table("Softmax over ten keys", columns, rows)],
        draw,
    )
