"""Which of the hypotheses that a longer search has finished are those of transformers' search: it may end before."""

import math
from collections.abc import Iterable, Mapping, Sequence
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

    token_ids: tuple[int, ...]
    length: int
    total: float
    score: float


class Ending:
    """
    Where transformers' search for one sentence ends. It does when nothing that still runs could be among the best.

    Args:
        longest: How many tokens any target of the batch may get, which `early_stopping="never"` looks forward to.
        finished: The hypotheses that a longer search has finished.
        prefixes: For some of these the log-probability of each token that was not forced.
    """

    def __init__(
        self,
        settings: SearchSettings,
        longest: int,
        finished: Iterable[FinishedHypothesis],
        prefixes: Mapping[FinishedHypothesis, Sequence[float]],
    ):
        self.settings, self.longest, self.prefixes = settings, longest, prefixes
        self.finished = {one.token_ids: one for one in finished}
        self.best_running: dict[int, float] = {}
        """The log-probability of the best one that ran after a step, where that is known."""

    def see(self, step: int, at_step: Iterable[FinishedHypothesis], eos: int) -> None:
        """What a search that was cut after `step` has found: all that had finished, and the best that ran."""
        running = []
        for one in at_step:
            if one.token_ids[-1] == eos:
                self.finished.setdefault(one.token_ids, one)
            else:
                running.append(one.total)
        # If the best candidates of this step all finished in it, nothing that ran was better than they.
        self.best_running[step] = max(running, default=self._running_at_least(step))

    def step(self) -> int | None:
        """After which the search ends. None if it goes on behind the last one that is known of."""
        full = end_of(self.finished.values(), self.settings.num_beams)
        if self.settings.of("early_stopping") is True:
            return full
        last = max(one.length for one in self.finished.values())
        return next((step for step in range(full, last) if self._ends_after(step)), None)

    def uncertain_step(self) -> int | None:
        """The same, where the best that ran is not known, and may be none of those that have finished."""
        step = self.step()
        return None if step in self.best_running or self.settings.of("early_stopping") is True else step

    def kept(self, step: int | None) -> list[FinishedHypothesis]:
        """The best of those that had finished after a step."""
        return best((one for one in self.finished.values() if step is None or one.length <= step), self.settings.number)

    def _ends_after(self, step: int) -> bool:
        exponent = self.settings.length_penalty
        hopes_for_more = self.settings.of("early_stopping") == "never" and exponent > 0
        running = self.best_running.get(step, self._running_at_least(step))
        reachable = running / (self.longest if hopes_for_more else step) ** exponent
        before = (one for one in self.finished.values() if one.length <= step)
        return bool(reachable <= best(before, self.settings.num_beams)[-1].score)

    def _running_at_least(self, step: int) -> float:
        """The best of what those that finished later had after a step."""
        later = (math.fsum(each[:step]) for one, each in self.prefixes.items() if one.length > step)
        return max(later, default=-math.inf)


def end_of(finished: Iterable[FinishedHypothesis], width: int) -> int:
    """The step by which there are as many hypotheses as the search keeps."""
    lengths = sorted(one.length for one in finished)
    return lengths[min(width, len(lengths)) - 1]


def best(finished: Iterable[FinishedHypothesis], number: int) -> list[FinishedHypothesis]:
    return sorted(finished, key=lambda one: one.score, reverse=True)[:number]
