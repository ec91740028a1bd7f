"""Where transformers' search for one sentence ends, by what other searches for it have found."""

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
    Transformers' search ends at its limit of length, or earlier: with `early_stopping=True` when it has `num_beams`
    finished hypotheses, else when nothing that still runs could be among the best of these.

    Args:
        limit: How many tokens this target may get.
        longest: How many any target of the batch may get, which `early_stopping="never"` looks forward to.
        finished: Some hypotheses that have finished.
    """

    def __init__(
        self, settings: SearchSettings, limit: int, longest: int, finished: Iterable[FinishedHypothesis]
    ) -> None:
        self.settings, self.limit, self.longest = settings, limit, longest
        self.finished = {one.token_ids: one for one in finished}
        self.prefixes: Mapping[FinishedHypothesis, Sequence[float]] = {}
        """Of some of these the log-probability of each token that was not forced."""
        self.best_running: dict[int, float] = {}
        """The log-probability of the best one that ran after a step, of those that were seen: none if all had ended."""

    def hint(
        self, finished: Iterable[FinishedHypothesis], prefixes: Mapping[FinishedHypothesis, Sequence[float]]
    ) -> None:
        """Hypotheses that finish later. What they had after a step, the best that ran then had at least."""
        self.finished |= {one.token_ids: one for one in finished}
        self.prefixes = prefixes

    def see(self, step: int, there: Iterable[FinishedHypothesis], eos: int) -> None:
        """All that had finished after a step, and the best of those that ran, cut there."""
        running = []
        for one in there:
            if one.token_ids[-1] == eos or step == self.limit:
                self.finished.setdefault(one.token_ids, one)
            else:
                running.append(one.total)
        self.best_running[step] = max(running, default=-math.inf)

    def step(self) -> int:
        """After which the search ends, by what is known."""
        full = end_of(self.finished.values(), self.settings.num_beams)
        if self.settings.of("early_stopping") is True:
            return min(full, self.limit)
        return next((step for step in range(full, self.limit) if self._ends_after(step)), self.limit)

    def step_to_see(self) -> int | None:
        """The step to look at for certainty about that."""
        step = self.step()
        if step not in self.best_running:
            return step
        # If the best candidates all finished there, what ran was worse, so that the search has ended, unless it hopes
        # for longer ones. Then what runs in the next step says how good it was at least.
        is_unseen = hopes_for_longer(self.settings) and self.best_running[step] == -math.inf
        return step + 1 if is_unseen and step < self.limit and step + 1 not in self.best_running else None

    def kept(self) -> list[FinishedHypothesis]:
        return best(self._finished_by(self.step()), self.settings.number)

    def _ends_after(self, step: int) -> bool:
        exponent = self.settings.length_penalty
        running = max(self.best_running.get(step, -math.inf), self._running_at_least(step))
        reachable = running / (self.longest if hopes_for_longer(self.settings) else step) ** exponent
        return bool(reachable <= best(self._finished_by(step), self.settings.num_beams)[-1].score)

    def _finished_by(self, step: int) -> list[FinishedHypothesis]:
        return [one for one in self.finished.values() if one.length <= step]

    def _running_at_least(self, step: int) -> float:
        """The best that ran after a step had as much as anything that has grown from those that ran."""
        running = [total for later, total in self.best_running.items() if later > step]
        finished = [math.fsum(each[:step]) for one, each in self.prefixes.items() if one.length > step]
        return max(running + finished, default=-math.inf)


def hopes_for_longer(settings: SearchSettings) -> bool:
    """Whether a search goes on as if what runs could get the longest length without losing probability."""
    return settings.of("early_stopping") == "never" and settings.length_penalty > 0


def end_of(finished: Iterable[FinishedHypothesis], width: int) -> int:
    """The step by which there are as many hypotheses as the search keeps."""
    lengths = sorted(one.length for one in finished)
    return lengths[min(width, len(lengths)) - 1]


def best(finished: Iterable[FinishedHypothesis], number: int) -> list[FinishedHypothesis]:
    return sorted(finished, key=lambda one: one.score, reverse=True)[:number]
