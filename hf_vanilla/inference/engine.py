"""What a `Translator` asks of the engine that computes: hypotheses for ids, and how probable given targets are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from transformers import GenerationConfig

from .search_settings import SearchSettings


class EngineError(ValueError):
    """An engine cannot do what is asked for, or not exactly. The message says what."""


@dataclass(frozen=True)
class Found:
    """
    Args:
        token_ids: The whole target without the start token, <eos> included if it has come to its end.
        score: The log-probability of what was not forced, divided by the length penalty. NaN where not asked for.
    """

    token_ids: list[int]
    score: float


@runtime_checkable
class Engine(Protocol):
    """
    Args:
        vocab_size: How many logits there are.
        positions: How many tokens a source or a target may have; None if as many as wanted.
    """

    vocab_size: int
    positions: int | None

    @property
    def generation_config(self) -> GenerationConfig: ...

    def check(self, settings: SearchSettings) -> None:
        """Raise an EngineError that names a setting which the engine does not follow exactly."""

    def search(
        self,
        sources: Sequence[list[int]],
        starts: Sequence[list[int]],
        numbers: Sequence[int],
        settings: SearchSettings,
    ) -> list[list[Found]]:
        """
        The best targets of each source, best first.

        Args:
            starts: What each target begins with: without the start token, all of the same length.
            numbers: Those of the lines, from which seeds of samples are made.
        """

    def log_probabilities(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], max_tokens: int
    ) -> list[list[float]]:
        """Of each token of each target, given its source and the tokens before it."""
