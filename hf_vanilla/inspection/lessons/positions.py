"""Sinusoidal positions: a step is a rotation, and how alike two positions are depends on their distance alone."""

import math
from typing import Any

import torch
from torch import Tensor

from ...models.configuration_vanilla import VanillaConfig
from ...models.modeling_vanilla import VanillaSinusoidalPositions
from .lesson import BLUE, ORANGE, Lesson, Table

D_MODEL = 64
LONGEST = 200
STEPS = (-20, -1, 1, 7, 50)
DISTANCES = (0, 1, 2, 5, 10, 20, 50, 100, 199)


def frequencies(d_model: int) -> Tensor:
    return 10_000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)


def encoding(positions: Tensor, d_model: int) -> Tensor:
    """PE(p) (3.5) in float64: (positions, d_model)."""
    angles = positions.double()[:, None] * frequencies(d_model)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


def rotation(step: int, d_model: int) -> Tensor:
    """R(k), which turns the sine and cosine of each frequency w by the angle k w: PE(p + k) = R(k) PE(p)."""
    matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
    for pair, frequency in enumerate(frequencies(d_model).tolist()):
        sine, cosine = math.sin(step * frequency), math.cos(step * frequency)
        matrix[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = torch.tensor(
            [[cosine, sine], [-sine, cosine]], dtype=torch.float64
        )
    return matrix


def similarity(distance: int, d_model: int) -> float:
    """PE(p) PE(p + k), whatever p is: the sum of cos(k w) over the frequencies w. At distance 0 it is d_model / 2."""
    return float((distance * frequencies(d_model)).cos().sum())


def rises(values: list[float]) -> list[int]:
    """Distances at which positions are more alike than at the distance before."""
    return [place for place in range(1, len(values)) if values[place] > values[place - 1]]


def error_of_rotation(step: int, d_model: int = D_MODEL, longest: int = LONGEST) -> float:
    positions = torch.arange(max(0, -step), longest)
    moved = encoding(positions, d_model) @ rotation(step, d_model).T
    return float((moved - encoding(positions + step, d_model)).abs().max())


def positions_lesson() -> Lesson:
    by_distance = [similarity(distance, D_MODEL) for distance in range(LONGEST)]
    errors = [[step, error_of_rotation(step)] for step in STEPS]
    higher = rises(by_distance)
    ours = VanillaSinusoidalPositions(VanillaConfig(d_model=D_MODEL, num_heads=1))(torch.arange(LONGEST))
    in_float32 = float((ours - encoding(torch.arange(LONGEST), D_MODEL)).abs().max())

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[3, 2])
        left.plot(by_distance, color=BLUE, lw=1.5)
        left.plot(higher, [by_distance[place] for place in higher], ".", ms=3, color=ORANGE, label="it rises again")
        left.set_xlabel("distance of two positions")
        left.set_ylabel(f"PE(p) · PE(p + distance), d = {D_MODEL}")
        left.legend(frameon=False)
        waves = encoding(torch.arange(60), D_MODEL)
        for dimension, style in ((0, "-"), (16, "--"), (32, ":")):
            right.plot(waves[:, dimension], style, color=BLUE, lw=1.2, label=f"dimension {dimension}")
        right.set_xlabel("position")
        right.set_ylabel("PE")
        right.set_ylim(-1.1, 1.9)
        right.legend(frameon=False, fontsize=7, loc="upper left")

    return Lesson(
        "positions",
        "A step is a rotation, but near is not always more alike than far",
        "We chose this function because we hypothesized it would allow the model to easily learn to attend by relative "
        "positions, since for any fixed offset k, PE(pos+k) can be represented as a linear function of PE(pos).",
        "Vaswani et al. (2017), section 3.5",
        [
            "True: one matrix R(k), which turns each pair of a sine and a cosine, takes every position k steps "
            f"further. In float64 the largest error of R(k) PE(p) = PE(p + k) over {LONGEST} positions is "
            f"{max(error for _, error in errors):.1e}; what our model computes in float32 is within {in_float32:.1e}.",
            "All positions have the length √(d/2), and their dot product depends on their distance alone. It is "
            f"{by_distance[0]:.0f} at distance 0, {by_distance[5]:.1f} at 5, {by_distance[50]:.1f} at 50.",
            f"The common belief that it falls with the distance is wrong: it is {by_distance[100]:.1f} at distance "
            f"100, more than at 50, and it rises {len(higher)} times in the first {LONGEST} distances, the first "
            f"time from {higher[0] - 1} to {higher[0]}. And it is even: it says how far, not on which side. What a "
            "model makes of it is decided by the matrices of queries and keys.",
        ],
        "Left: the dot product of two positional encodings by their distance, which falls and rises in waves. "
        "Right: three dimensions of the encoding, which are waves of different length.",
        [
            Table(
                "Similarity by distance",
                ["distance", "PE(p) · PE(p + distance)"],
                [[k, by_distance[k]] for k in DISTANCES],
            ),
            Table("R(k) PE(p) = PE(p + k)", ["k", "largest error"], errors),
        ],
        draw,
    )
