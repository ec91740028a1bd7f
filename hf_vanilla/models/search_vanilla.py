"""
Greedy and beam search for `generate()` with the results of transformers' own, in less time.

- The keys and values of the encoder are there once for a sentence, not once for each of its hypotheses, and stay in
  their places when hypotheses change theirs.
- A sentence leaves the batch as soon as nothing can change its result.
- Hypotheses have the length that they have, not that of the longest to be expected.
- Only a part of the logits exists at a time.

Letters of shapes: B sentences, W hypotheses of each (the width of the beam), C candidates for the next ones, T tokens,
D d_model, N vocabulary size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Self

import torch
from torch import Tensor, nn

from .decoding_vanilla import IncrementalDecoder

LOGITS_AT_ONCE = 2_000_000  # few enough for a cache
NEVER = -1e9  # the score, in transformers' search, of what must not be chosen


@dataclass(frozen=True)
class Search:
    """What is searched for, in the words of the generation config."""

    start: Tensor  # (B,), the first token of each target
    limits: Tensor  # (B,), how long each target may be
    eos_token_ids: Tensor
    fill: int  # follows what is shorter than the longest
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    max_length: int = 0

    @property
    def candidates(self) -> int:
        """So many that, even if many of them end, there are enough to go on with."""
        return max(2, 1 + len(self.eos_token_ids)) * self.num_beams

    def ends(self, tokens: Tensor, length: int, sentences: Tensor) -> Tensor:
        """Whether targets that are `length` long, with these last tokens, end there: (B, C) -> (B, C)."""
        is_eos = (tokens[..., None] == self.eos_token_ids).any(-1)
        return is_eos | (length >= self.limits[sentences])[:, None]


def greedy_search(decoder: IncrementalDecoder, search: Search) -> Tensor:
    """The targets that always go on with the most probable token: (B, T)."""
    sentences = torch.arange(len(search.start), device=search.start.device)
    targets = search.start[:, None]
    finished = []
    for length in count(2):
        tokens = decoder.head(decoder.states(targets[:, -1:])).argmax(-1)
        targets = torch.cat([targets, tokens], dim=-1)
        is_open = ~search.ends(tokens, length, sentences)[:, 0]
        kept = is_open.nonzero()[:, 0]
        if len(kept) < len(targets):
            finished.append((sentences[~is_open], targets[~is_open]))
            sentences, targets = sentences[kept], targets[kept]
            decoder.keep(kept)
            decoder.choose(kept)
        if len(kept) == 0:
            break
    order, found = zip(*finished, strict=True)
    return in_order(order, found, search.fill)


@dataclass(frozen=True)
class Ended:
    """The best targets that have ended: (B, W, T), (B, W), (B, W). Where there is none yet, its length is 0."""

    targets: Tensor
    lengths: Tensor
    scores: Tensor

    @classmethod
    def none_yet(cls, search: Search) -> Self:
        targets = search.start[:, None, None].expand(-1, search.num_beams, -1)
        lengths = torch.zeros_like(targets[..., 0])
        return cls(targets, lengths, torch.full_like(lengths, NEVER, dtype=torch.float32))

    def together_with(self, targets: Tensor, scores: Tensor, ends: Tensor, length: int, search: Search) -> Self:
        """The best of these and of those among the most probable candidates that end now."""
        width = search.num_beams
        targets, scores, ends = targets[:, :width], scores[:, :width], ends[:, :width]
        scores = (scores / length**search.length_penalty).masked_fill(~ends, NEVER)
        earlier = nn.functional.pad(self.targets, (0, 1), value=search.fill)
        scores, best = torch.cat([self.scores, scores], dim=1).topk(width)
        lengths = torch.cat([self.lengths, ends * length], dim=1).gather(1, best)
        return type(self)(at(torch.cat([earlier, targets], dim=1), best), lengths, scores)

    def may_improve(self, scores: Tensor, length: int, search: Search) -> Tensor:
        """For which sentences hypotheses with these scores, the best that go on, can still become better: (B,)."""
        is_full = (self.lengths > 0).all(1)
        if search.early_stopping is True:
            return ~is_full
        hopes_for_more = search.early_stopping == "never" and search.length_penalty > 0
        reachable = scores / (search.max_length - 1 if hopes_for_more else length) ** search.length_penalty
        return (reachable > self.scores[:, -1]) | ~is_full

    def of(self, sentences: Tensor) -> Self:
        return type(self)(self.targets[sentences], self.lengths[sentences], self.scores[sentences])


def beam_search(decoder: IncrementalDecoder, search: Search) -> tuple[Tensor, Tensor]:
    """The best targets of each sentence, and their scores: (B * R, T), (B * R,), where R is num_return_sequences."""
    device = search.start.device
    sentences = torch.arange(len(search.start), device=device)
    running = search.start[:, None, None]  # one hypothesis is enough to begin with
    scores = torch.zeros(len(running), 1, device=device)
    ended, finished = Ended.none_yet(search), []
    for length in count(1):  # of targets without their start token
        firsts = torch.arange(len(running), device=device)[:, None] * running.shape[1]
        states = decoder.states(running[..., -1])
        scores, parents, tokens = best_continuations(states, decoder.head, scores, search.candidates)
        candidates = torch.cat([at(running, parents), tokens[..., None]], dim=-1)
        ends = search.ends(tokens, length + 1, sentences)
        ended = ended.together_with(candidates, scores, ends, length, search)
        scores, chosen = (scores + ends * NEVER).topk(search.num_beams)
        running, hypotheses = at(candidates, chosen), firsts + parents.gather(1, chosen)
        is_open = ended.may_improve(scores[:, 0], length, search) & ~ends.all()
        kept = is_open.nonzero()[:, 0]
        if len(kept) < len(running):
            done = ended.of(~is_open)
            finished.append((sentences[~is_open], done.targets, done.lengths, done.scores))
            sentences, running, hypotheses, scores = (x[kept] for x in (sentences, running, hypotheses, scores))
            ended = ended.of(kept)
            decoder.keep(kept)
        if len(kept) == 0:
            break
        decoder.choose(hypotheses.flatten())
    order, *found = zip(*finished, strict=True)
    targets, lengths, scores = (
        in_order(order, parts, search.fill)[:, : search.num_return_sequences] for parts in found
    )
    return targets.flatten(0, 1)[:, : 1 + int(lengths.max())], scores.flatten()


def best_continuations(states: Tensor, head: nn.Linear, scores: Tensor, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """
    The most probable ways to go on from any hypothesis of a sentence: (B, W, D), (B, W) -> three times (B, C).

    Returns their scores, the hypotheses that they go on with, and the tokens by which they do.
    """
    size = max(1, LOGITS_AT_ONCE // (head.out_features * states.shape[1]))
    parts = [most_probable(head(part), number) for part in states.split(size)]
    best, tokens = (torch.cat(part) for part in zip(*parts, strict=True))  # of each hypothesis
    best, places = (best + scores[..., None]).flatten(1).topk(number)
    return best, places // number, tokens.flatten(1).gather(1, places)


def most_probable(logits: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The log-probabilities of the most probable tokens, and these: (B, W, N) -> twice (B, W, C)."""
    logits = logits.float()
    best, tokens = logits.topk(number)
    # The largest probability is exp(best logit) / sum, and never too small for its logarithm.
    return best - best[..., :1] + logits.softmax(-1).amax(-1, keepdim=True).log(), tokens


def at(hypotheses: Tensor, places: Tensor) -> Tensor:
    """Those at some places, for each sentence: (B, W, T), (B, C) -> (B, C, T)."""
    return hypotheses.take_along_dim(places[..., None], 1)


def in_order(sentences: Sequence[Tensor], parts: Sequence[Tensor], fill: int) -> Tensor:
    """Values of sentences that came in parts, in the order of the sentences, filled up to the same length."""
    longest = max(part.shape[-1] for part in parts)
    filled = [nn.functional.pad(part, (0, longest - part.shape[-1]), value=fill) for part in parts]
    return torch.cat(filled)[torch.cat(list(sentences)).argsort()]


__all__ = ["Search", "beam_search", "greedy_search"]
