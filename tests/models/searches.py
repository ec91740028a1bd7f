"""What tests of searches share: how often ours are taken, and what transformers' own find."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.models import generation_vanilla, guard_vanilla

BOS, PAD, EOS = 0, 1, 2
VOCAB, SENTENCES = 41, 24

Source = dict[str, Tensor]


class Recorder:
    """Counts how often our own searches are taken, and keeps the scores that they return."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.times, self.scores = 0, torch.empty(0)
        self.beam_search, self.greedy_search = guard_vanilla.beam_search, guard_vanilla.greedy_search
        monkeypatch.setattr(guard_vanilla, "beam_search", self._beam_search)
        monkeypatch.setattr(guard_vanilla, "greedy_search", self._greedy_search)

    def _beam_search(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        self.times += 1
        targets, self.scores = self.beam_search(*arguments)
        return targets, self.scores

    def _greedy_search(self, *arguments: Any) -> tuple[Tensor, Tensor | None]:
        self.times += 1
        return self.greedy_search(*arguments)


def theirs(model: Model, source: Source, **options: Any) -> tuple[Tensor, Tensor]:
    """What transformers' own search finds, called past ours, and its scores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation_vanilla, "may_use_our_search", lambda *_: False)
        found = model.generate(**source, **options, return_sequence_scores=True)
    return found.sequences, found.sequences_scores


def assert_the_same(model: Model, ours: Recorder, source: Source, **options: Any) -> Tensor:
    """Our search is taken, and finds the targets and scores of transformers'. Returns the targets."""
    targets, scores = theirs(model, source, **options)
    times = ours.times
    found = model.generate(**source, **options)
    scored = model.generate(**source, **options, return_sequence_scores=True)
    assert ours.times == times + 2
    for sequences in (found, scored.sequences):
        torch.testing.assert_close(sequences, targets, rtol=0, atol=0, msg=str(options))
    torch.testing.assert_close(scored.sequences_scores, scores, msg=str(options))
    return found
