"""
Speed: greedy and beam search for `generate()`, with the results of transformers' own in less time.

- Keys and values of the source, and of the tokens that hypotheses share, are stored once for each sentence, and are not
  copied when hypotheses are replaced by others.
- Finished sentences leave the batch, in groups of four.
- Hypotheses are stored with the length that they have, not padded to the longest that they may get.
- Logits are computed for a part of the sentences at a time. The best of them are found by looking at the maxima of
  groups first, and then only into the groups with the largest.

Letters of shapes: B sentences, W hypotheses of each (the width of the beam), C candidates for the next ones, T tokens,
D d_model, N vocabulary size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Self

import torch
from torch import Tensor, nn

from .decoding_vanilla import IncrementalDecoder
from .loss_vanilla import logits_at_once

CPU_LOGITS = 2_000_000  # at a time, so that they stay in the processor's cache
LOGITS_IN_A_GROUP = 64  # PyTorch's topk does not sort all values if there are 64 times as many as are wanted
# Numbers of sentences are filled up to a multiple of this with finished ones: for each new number of rows oneDNN
# prepares itself, which takes as long as some steps of the search.
ROUND = 4
NEVER = -1e9  # the score that transformers' search gives to what must not be chosen


@dataclass(frozen=True)
class Search:
    """What is searched for, by the names of the generation config."""

    prefix: Tensor  # (B, P), what each target begins with: the start token, and what is forced
    limits: Tensor  # (B,), how many tokens each target may get after that
    eos_token_ids: Tensor
    fill: int  # the token that pads shorter targets
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    max_new_tokens: int = 0
    is_scored: bool = False  # whether greedy search, too, returns scores, which it does not need
    must_not_come: tuple[tuple[Tensor, float], ...] = ()  # tokens, and up to which number of new ones that holds
    renormalizes: bool = False  # whether the other tokens share the probability of those that must not come
    forced_last: int | None = None  # what the last token must be of a target that gets max_new_tokens

    @cached_property
    def first_limit(self) -> int:
        return int(self.limits.min())

    @property
    def candidates(self) -> int:
        """How many to look at, so that there are enough to go on with, however many of them end."""
        return max(2, 1 + len(self.eos_token_ids)) * self.num_beams

    def suppressed(self, length: int) -> Tensor | None:
        """What must not be the new token of this number, counted from 1."""
        parts = [tokens for tokens, last in self.must_not_come if length <= last]
        return torch.cat(parts) if parts else None

    def forced(self, length: int) -> int | None:
        """What must be the new token of this number, counted from 1."""
        return self.forced_last if length == self.max_new_tokens else None

    def ends(self, tokens: Tensor, length: int, sentences: Tensor) -> Tensor:
        """Whether targets of `length` new tokens, of which these are the last, end there: (B, C) -> (B, C)."""
        is_eos = (tokens[..., None] == self.eos_token_ids).any(-1)
        return is_eos if length < self.first_limit else is_eos | (length >= self.limits[sentences])[:, None]


@torch.inference_mode()
def greedy_search(decoder: IncrementalDecoder, search: Search) -> tuple[Tensor, Tensor | None]:
    """The targets in which each token is the most probable one, and their scores if wanted: (B, T), (B,)."""
    device = search.prefix.device
    sentences = torch.arange(len(search.prefix), device=device)
    targets = search.prefix
    scores = torch.zeros(len(targets), 1, device=device)
    is_open, finished = torch.ones_like(sentences, dtype=torch.bool), []
    for length in count(1):  # of targets without their prefix
        tokens, gained = most_probable_tokens(decoder, targets[:, -1:], search, length)
        targets = torch.cat([targets, tokens], dim=-1)
        scores = scores + gained
        ends = is_open & search.ends(tokens, length, sentences)[:, 0]
        if not ends.any():
            continue
        done = scores[ends] / length**search.length_penalty if search.is_scored else scores[ends]
        finished.append((sentences[ends], targets[ends], done))
        is_open = is_open & ~ends
        kept = places_of(is_open)
        if len(kept) == 0:
            break
        if len(kept) < len(targets):
            sentences, targets, scores, is_open = sentences[kept], targets[kept], scores[kept], is_open[kept]
            decoder.keep(kept)
    order, *found = zip(*finished, strict=True)
    targets, scores = (in_order(order, parts, search.fill) for parts in found)
    return targets, scores.flatten() if search.is_scored else None


def most_probable_tokens(
    decoder: IncrementalDecoder, last: Tensor, search: Search, length: int
) -> tuple[Tensor, Tensor | float]:
    """The next tokens, (B, 1), and the log-probabilities that the model gives them, if scores are wanted."""
    forced, suppressed = search.forced(length), search.suppressed(length)
    if forced is not None and not search.is_scored:
        return torch.full_like(last, forced), 0.0
    logits = decoder.logits(decoder.states(last))
    if forced is not None:
        return torch.full_like(last, forced), logits.float().log_softmax(-1)[..., forced]
    tokens = largest(without(suppressed, logits), torch.zeros_like(last, dtype=torch.float32), 1)[1]
    if not search.is_scored:
        return tokens, 0.0
    return tokens, log_probability_of_largest(logits.float(), suppressed, renormalizes=False)


@dataclass(frozen=True)
class Ended:
    """
    The best finished targets, their lengths without the prefix, and their scores: (B, W, T), (B, W), (B, W).

    A length of 0 means: none yet.
    """

    targets: Tensor
    lengths: Tensor
    scores: Tensor

    @classmethod
    def none_yet(cls, search: Search) -> Self:
        targets = search.prefix[:, None].expand(-1, search.num_beams, -1)
        lengths = torch.zeros_like(targets[..., 0])
        return cls(targets, lengths, torch.full_like(lengths, NEVER, dtype=torch.float32))

    def together_with(self, targets: Tensor, scores: Tensor, ends: Tensor, length: int, search: Search) -> Self:
        """The best of these, and of the W most probable candidates those that end now."""
        width = search.num_beams
        targets, scores, ends = targets[:, :width], scores[:, :width], ends[:, :width]
        if not ends.any():
            return self
        scores = (scores / length**search.length_penalty).masked_fill(~ends, NEVER)
        shorter = targets.shape[2] - self.targets.shape[2]
        earlier = nn.functional.pad(self.targets, (0, shorter), value=search.fill)
        scores, best = torch.cat([self.scores, scores], dim=1).topk(width)
        lengths = torch.cat([self.lengths, ends * length], dim=1).gather(1, best)
        return type(self)(at(torch.cat([earlier, targets], dim=1), best), lengths, scores)

    def may_improve(self, scores: Tensor, length: int, search: Search) -> Tensor:
        """Which sentences may still get a better target, if these are the scores of their best hypotheses: (B,)."""
        is_full = (self.lengths > 0).all(1)
        if search.early_stopping is True:
            return ~is_full
        hopes_for_more = search.early_stopping == "never" and search.length_penalty > 0
        reachable = scores / (search.max_new_tokens if hopes_for_more else length) ** search.length_penalty
        return (reachable > self.scores[:, -1]) | ~is_full

    def of(self, sentences: Tensor) -> Self:
        return type(self)(self.targets[sentences], self.lengths[sentences], self.scores[sentences])


@torch.inference_mode()
def beam_search(decoder: IncrementalDecoder, search: Search) -> tuple[Tensor, Tensor]:
    """The best targets of each sentence, and their scores: (B * R, T), (B * R,), where R is num_return_sequences."""
    device = search.prefix.device
    sentences = torch.arange(len(search.prefix), device=device)
    running = search.prefix[:, None]  # one hypothesis is enough to begin with
    scores = torch.zeros(len(running), 1, device=device)
    ended = nothing = Ended.none_yet(search)
    is_open, finished = torch.ones_like(sentences, dtype=torch.bool), []
    for length in count(1):  # of targets without their prefix
        scores, parents, tokens = best_continuations(decoder, running[..., -1], scores, search, length)
        candidates = torch.cat([at(running, parents), tokens[..., None]], dim=-1)
        ends = search.ends(tokens, length, sentences)
        ended = ended.together_with(candidates, scores, ends, length, search)
        scores, chosen = (scores + ends * NEVER).topk(search.num_beams)
        running = at(candidates, chosen)
        decoder.choose(parents.gather(1, chosen))
        if ended is nothing:
            continue
        closes = is_open & ~ended.may_improve(scores[:, 0], length, search)
        if not closes.any():
            continue
        done = ended.of(closes)
        finished.append((sentences[closes], done.targets, done.lengths, done.scores))
        is_open = is_open & ~closes
        kept = places_of(is_open)
        if len(kept) == 0:
            break
        if len(kept) < len(running):
            sentences, running, scores, is_open = sentences[kept], running[kept], scores[kept], is_open[kept]
            ended = ended.of(kept)
            decoder.keep(kept)
    order, *found = zip(*finished, strict=True)
    targets, lengths, scores = (
        in_order(order, parts, search.fill)[:, : search.num_return_sequences] for parts in found
    )
    return targets.flatten(0, 1)[:, : search.prefix.shape[1] + int(lengths.max())], scores.flatten()


def places_of(is_open: Tensor) -> Tensor:
    """
    Which sentences to keep: the open ones, and so many others that their number is a multiple of ROUND.

    Most stay where they are. The last open ones move into the places of those that leave.
    """
    number = min(len(is_open), -(-int(is_open.sum()) // ROUND) * ROUND)
    places = torch.arange(number, device=is_open.device)
    last = number + is_open[number:].nonzero()[:, 0]
    free = (~is_open[:number]).nonzero()[: len(last), 0]
    places[free] = last
    return places


def best_continuations(
    decoder: IncrementalDecoder, last: Tensor, scores: Tensor, search: Search, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """
    The most probable next tokens of hypotheses with these last tokens and scores: (B, W), (B, W) -> 3 times (B, C).

    Returns the scores with the next token, the hypotheses that it belongs to, and the token.
    """
    forced = search.forced(length)
    if forced is not None:
        return (
            scores,
            torch.arange(scores.shape[1], device=scores.device).expand_as(last),
            torch.full_like(last, forced),
        )
    size = max(1, logits_at_once(last.device, on_cpu=CPU_LOGITS) // (decoder.vocab_size * last.shape[1]))
    parts = zip(decoder.states(last).split(size), scores.split(size), strict=True)
    found = [most_probable(decoder.logits(states), of_states, search, length) for states, of_states in parts]
    best, places = (torch.cat(part) for part in zip(*found, strict=True))
    return best, places // decoder.vocab_size, places % decoder.vocab_size


def most_probable(logits: Tensor, scores: Tensor, search: Search, length: int) -> tuple[Tensor, Tensor]:
    """The best scores with one more token, and where they are among the W * N of a sentence: (B, W, N) -> (B, C)."""
    logits, suppressed = logits.float(), search.suppressed(length)
    scores = scores + log_probability_of_largest(logits, suppressed, search.renormalizes)
    return largest(without(suppressed, logits), scores, search.candidates)


def log_probability_of_largest(logits: Tensor, suppressed: Tensor | None, renormalizes: bool) -> Tensor:
    """
    Its probability is at least 1 / N, so that the logarithm of that is exact: (B, W, N) -> (B, W).

    That of the largest which is not suppressed, among all, may be smaller than numbers can be.
    """
    if suppressed is None or renormalizes:
        return without(suppressed, logits).softmax(-1).amax(-1).log()
    return without(suppressed, logits.log_softmax(-1)).amax(-1)


def without(tokens: Tensor | None, logits: Tensor) -> Tensor:
    """The same with no chance for some tokens: they lose what they have, as in transformers, and others get nothing."""
    return logits if tokens is None else logits.index_fill(-1, tokens, -math.inf)


def largest(logits: Tensor, scores: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """
    The largest values of a sentence and where they are, with the logits of each hypothesis shifted so that the largest
    is equal to `scores`: (B, W, N), (B, W) -> 2 times (B, C).

    The C largest values are in the C groups with the largest maxima: only these are looked into.
    """
    size, in_group = logits.shape[-1], min(LOGITS_IN_A_GROUP, logits.shape[-1])
    maxima = maxima_of_groups(logits, in_group)
    groups, less = maxima.shape[-1], maxima.amax(-1)
    maxima = (maxima - less[..., None] + scores[..., None]).flatten(1)
    _, chosen = first_or_topk(maxima, min(number, maxima.shape[1]))
    hypotheses = chosen // groups
    members = (chosen % groups * in_group)[..., None] + torch.arange(in_group, device=logits.device)
    places = hypotheses[..., None] * size + members.clamp(max=size - 1)
    found = logits.flatten(1).gather(1, places.flatten(1)).view_as(places)
    found = found - less.gather(1, hypotheses)[..., None] + scores.gather(1, hypotheses)[..., None]
    if size % in_group:
        found = found.masked_fill(members >= size, -math.inf)
    best, best_places = first_or_topk(found.flatten(1), number)
    return best, places.flatten(1).gather(1, best_places)


def maxima_of_groups(logits: Tensor, in_group: int) -> Tensor:
    """Of groups of this size; the last may be smaller: (B, W, N) -> (B, W, number of groups)."""
    rest = logits.shape[-1] % in_group
    whole = logits[..., : logits.shape[-1] - rest].unflatten(-1, (-1, in_group)).amax(-1)
    return torch.cat([whole, logits[..., -rest:].amax(-1, keepdim=True)], dim=-1) if rest else whole


def first_or_topk(values: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The largest values and where they are. A single one is the first of equal ones, which topk does not promise."""
    return values.max(1, keepdim=True) if number == 1 else values.topk(number)


def at(hypotheses: Tensor, places: Tensor) -> Tensor:
    """The hypotheses at these places of each sentence: (B, W, T), (B, C) -> (B, C, T)."""
    return hypotheses.take_along_dim(places[..., None], 1)


def in_order(sentences: Sequence[Tensor], parts: Sequence[Tensor], fill: int) -> Tensor:
    """Join results of sentences that finished in parts, in the order of the sentences, padded to the same length."""
    longest = max(part.shape[-1] for part in parts)
    filled = [nn.functional.pad(part, (0, longest - part.shape[-1]), value=fill) for part in parts]
    return torch.cat(filled)[torch.cat(list(sentences)).argsort()]


__all__ = ["Search", "beam_search", "greedy_search"]
