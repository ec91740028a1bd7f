"""Which of the hypotheses that a longer search has finished are those of transformers' search: it may end before."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from .search_settings import SearchSettings


@dataclass(frozen=True)
class FinishedHypothesis:
    """
    Args:
        token_ids: The whole target.
        length: How many of its tokens were not forced.
        total: Their log-probability.
        score: The same divided by the length penalty.
    """

    token_ids: list[int]
    length: int
    total: float
    score: float


def kept_by(
    settings: SearchSettings,
    row: list[FinishedHypothesis],
    prefix_score: Callable[[FinishedHypothesis, int], float],
    longest: int,
    limit: int,
) -> tuple[list[FinishedHypothesis], bool]:
    """
    The best of those that finished before transformers' search ends, and whether no later one can be among them.

    That is judged by `row`, and wrong if the best hypothesis that runs at a step is none of those that finish in it.

    Args:
        prefix_score: The log-probability of so many first tokens of a hypothesis. The best of those that run at a step
            is at least as probable as what later hypotheses had then.
        longest: How many tokens any target of the batch may get, which "never" looks forward to.
        limit: How many a target of this sentence may get.
    """
    number, width = settings.number, settings.num_beams
    end, last = end_of(row, width), max(one.length for one in row)
    early, exponent = settings.of("early_stopping"), settings.length_penalty
    if early is True:
        return best(before(row, end), number), True
    while end < last:
        running = max((prefix_score(one, end) for one in row if one.length > end), default=-math.inf)
        hopes_for_more = early == "never" and exponent > 0
        reachable = running / (longest if hopes_for_more else end) ** exponent
        if reachable <= best(before(row, end), width)[-1].score:
            return best(before(row, end), number), True
        end += 1
    return best(row, number), last >= limit


def end_of(row: list[FinishedHypothesis], width: int) -> int:
    """The step by which there are as many hypotheses as the search keeps."""
    return sorted(one.length for one in row)[min(width, len(row)) - 1]


def before(row: list[FinishedHypothesis], end: int) -> list[FinishedHypothesis]:
    return [one for one in row if one.length <= end]


def best(row: list[FinishedHypothesis], number: int) -> list[FinishedHypothesis]:
    return sorted(row, key=lambda one: one.score, reverse=True)[:number]
