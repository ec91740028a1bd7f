"""
Which texts have similar vectors.

States of a Transformer point into few directions: any two of them have a high cosine, and what is common to all says
nothing about a text. So their mean and their dominant directions are taken out first, one for every 100 dimensions, as
by Mu and Viswanath (2018), "All-but-the-Top".
"""

from dataclasses import dataclass

import numpy as np

from ..data.errors import InvalidDataError

NEIGHBOURS = 3

MIN_TEXTS = 20
"""Of fewer texts neither the mean nor a direction is known well enough to take it out."""

ROWS = 1024  # of similarities that are in memory at a time


@dataclass(frozen=True)
class Neighbours:
    """
    Args:
        places: For each text those of the nearest others, the nearest first: (texts, neighbours).
        similarities: Of these.
        correction: What was done to the vectors, in words.
        cosine_before: Mean cosine of two different texts, as the vectors are.
        cosine_after: The same of what the similarities are made of.
    """

    places: np.ndarray
    similarities: np.ndarray
    correction: str
    cosine_before: float
    cosine_after: float


def neighbours_of(vectors: np.ndarray, number: int = NEIGHBOURS) -> Neighbours:
    """
    Args:
        vectors: (texts, d_model), of at least two texts.
    """
    if len(vectors) < 2:
        raise InvalidDataError("one text has no neighbours: give two or more")
    number = min(number, len(vectors) - 1)
    plain, (corrected, correction) = unit_vectors(vectors), isotropic(vectors)
    unit = unit_vectors(corrected)
    places, similarities = [], []
    for start in range(0, len(unit), ROWS):
        cosines = unit[start : start + ROWS] @ unit.T
        cosines[np.arange(len(cosines)), start + np.arange(len(cosines))] = -np.inf
        nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :number]
        places.append(nearest)
        similarities.append(np.take_along_axis(cosines, nearest, 1))
    return Neighbours(
        np.concatenate(places), np.concatenate(similarities), correction, mean_cosine(plain), mean_cosine(unit)
    )


def isotropic(vectors: np.ndarray) -> tuple[np.ndarray, str]:
    """The vectors without their mean and their dominant directions, in float64; and what was done, in words."""
    vectors = vectors.astype(np.float64)
    if len(vectors) < MIN_TEXTS:
        return (
            vectors,
            f"none: {len(vectors)} texts are fewer than the {MIN_TEXTS} that it takes to know what is common",
        )
    number = max(1, round(vectors.shape[1] / 100))
    centred = vectors - vectors.mean(0)
    directions = np.linalg.svd(centred, full_matrices=False)[2][:number]
    words = f"the mean of all texts and the {number} dominant direction{'s' if number > 1 else ''} are taken out"
    return centred - centred @ directions.T @ directions, words


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Of length 1; a vector of length 0 stays."""
    vectors = vectors.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: np.ndarray = vectors / np.where(lengths > 0, lengths, 1)
    return unit


def mean_cosine(unit: np.ndarray) -> float:
    """Of all pairs of different vectors: what random ones have in common (Ethayarajh 2019)."""
    number = len(unit)
    total = float((unit.sum(0) ** 2).sum() - (unit**2).sum())
    return total / (number * (number - 1))
