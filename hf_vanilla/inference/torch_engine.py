"""The model itself as an engine: whatever its `generate()` can do."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from itertools import repeat

import torch
from transformers import GenerationConfig, PreTrainedModel

from .batching import mask_of, padded
from .engine import Found
from .scoring import log_probabilities, normalised, start_token
from .search_settings import SearchSettings


class TorchEngine:
    """
    Args:
        pad: The token that fills shorter sources and targets.
        eos: The token that ends targets.
    """

    def __init__(self, model: PreTrainedModel, pad: int, eos: int):
        self.model, self.pad, self.eos = model, pad, eos
        self.vocab_size = model.config.vocab_size
        self.positions: int | None = getattr(model.config, "max_position_embeddings", None)
        self.gives_scores = "return_sequence_scores" in signature(model.generate).parameters

    @property
    def generation_config(self) -> GenerationConfig:
        return self.model.generation_config

    def check(self, settings: SearchSettings) -> None:
        """`generate()` itself refuses what it cannot do."""

    @torch.no_grad()
    def search(
        self,
        sources: Sequence[list[int]],
        starts: Sequence[list[int]],
        numbers: Sequence[int],
        settings: SearchSettings,
        suppressed: Sequence[int] = (),
    ) -> list[list[Found]]:
        device = self.model.device
        each = settings.number if settings.is_sampling else 1
        ids = [source for source in sources for _ in range(each)]
        options = settings.options_of(numbers, len(starts[0]), suppressed)
        if not self.gives_scores:
            options.pop("return_sequence_scores", None)
        if starts[0]:
            begun = [[start_token(self.model), *start] for start in starts for _ in range(each)]
            options["decoder_input_ids"] = torch.tensor(begun, device=device)
        with evaluating(self.model):
            found = self.model.generate(padded(ids, self.pad, device), attention_mask=mask_of(ids, device), **options)
        has_scores = settings.has_scores and self.gives_scores
        targets, scores = (found.sequences, found.sequences_scores.tolist()) if has_scores else (found, None)
        tokens = [without_padding(target[1:], self.pad, self.eos) for target in targets.tolist()]
        if settings.has_scores and not has_scores:
            repeated = [source for source in sources for _ in range(settings.number)]
            scores = self._scores(repeated, tokens, len(starts[0]), settings.length_penalty)
        answers = list(map(Found, tokens, scores or repeat(math.nan)))
        return [answers[start : start + settings.number] for start in range(0, len(answers), settings.number)]

    def _scores(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]], forced: int, exponent: float
    ) -> list[float]:
        """What models of other types have found, by their own probabilities: their `generate()` gives no scores."""
        rows = self.log_probabilities(sources, targets, sum(map(len, targets)))
        return [normalised(math.fsum(row[forced:]), max(1, len(row) - forced), exponent) for row in rows]

    def log_probabilities(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], max_tokens: int
    ) -> list[list[float]]:
        with evaluating(self.model):
            return log_probabilities(self.model, sources, targets, max_tokens)


def without_padding(target: list[int], pad: int, eos: int) -> list[int]:
    """A target up to its <eos>; or, if it was cut at a limit of length, up to the padding behind it."""
    if eos in target:
        return target[: target.index(eos) + 1]
    return target[: target.index(pad)] if pad in target else target


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout in the `with` block; those parts of a model that were in training go on with it behind."""
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in in_training:
            module.training = True
