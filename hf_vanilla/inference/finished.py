"""Which of the hypotheses that a longer search has finished are those of transformers' search: it may end before."""

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

    Args:
        prefix_score: The log-probability of so many first tokens of a hypothesis. The best of those that run at a step
            is at least as probable as what later hypotheses had then.
        longest: How many tokens any target of the batch may get, which "never" looks forward to.
        limit: How many a target of this sentence may get.
    """
    number, width = settings.number, settings.num_beams
    by_length = sorted(row, key=lambda one: one.length)
    end = by_length[min(width, len(row)) - 1].length  # by now there are as many as the search keeps
    last = by_length[-1].length
    early = settings.of("early_stopping")
    if early is True:
        return best(before(row, end), number), True
    everything = best(row, number)
    # A search that still finds better ones at its last step may find more.
    is_sure = last >= limit or all(one.length < last for one in everything)
    if all(one.length <= end for one in everything):
        return everything, is_sure
    exponent = settings.length_penalty
    while end < last:
        running = max(prefix_score(one, end) for one in row if one.length > end)
        hopes_for_more = early == "never" and exponent > 0
        reachable = running / (longest if hopes_for_more else end) ** exponent
        if reachable <= best(before(row, end), width)[-1].score:
            return best(before(row, end), number), True
        end += 1
    return everything, is_sure


def before(row: list[FinishedHypothesis], end: int) -> list[FinishedHypothesis]:
    return [one for one in row if one.length <= end]


def best(row: list[FinishedHypothesis], number: int) -> list[FinishedHypothesis]:
    return sorted(row, key=lambda one: one.score, reverse=True)[:number]
