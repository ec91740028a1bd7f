"""
How much a model needs each of its attention heads.

By gradient (Michel et al. 2019): the mean over examples of |dL/dxi|, where xi, which is 1, multiplies what the head
adds, and L is the example's loss per token. By masking: the same examples' losses without the head. The gradient says
what a small change does, in one backward pass; masking says what taking the head away does, in one pass for each head.

Of a model with few errors, a handful of examples makes up most of such a mean, and another handful gives another order
of heads. So there are medians over the examples as well: what holds for a typical one.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from ..inference.alignments import MAX_TOKENS
from ..inference.batching import batches_by_length, mask_of, padded
from ..inference.scoring import IGNORED, log_probabilities
from ..inference.torch_engine import evaluating
from .masking import Head, heads_of, scaled_heads, without_heads

Ids = Sequence[Sequence[int]]

STEPS = 10
"""In so many steps all heads are pruned, as in Michel et al. (2019)."""


@dataclass(frozen=True)
class Importance:
    """
    Args:
        gradient: Mean over examples of |dL/dxi|.
        masking: Mean over examples of the change of the loss without the head. Negative: the model is better without.
        absolute: Mean over examples of the size of that change: what the gradient estimates.
        typical_gradient: Median over examples of |dL/dxi|.
        typical_change: Median over examples of the size of the change.
    """

    gradient: float
    masking: float
    absolute: float
    typical_gradient: float
    typical_change: float


def losses(model: PreTrainedModel, sources: Ids, targets: Ids, max_tokens: int = MAX_TOKENS) -> np.ndarray:
    """Of each example, per token, its end included: without dropout and label smoothing."""
    with evaluating(model):
        each = log_probabilities(model, sources, targets, max_tokens)
    return np.array([-np.mean(row) for row in each])


def gradients(model: PreTrainedModel, sources: Ids, targets: Ids, max_tokens: int = MAX_TOKENS) -> np.ndarray:
    """dL/dxi of each example for each head, in the order of `heads_of`: (examples, heads)."""
    found = np.zeros((len(sources), len(heads_of(model))))
    lengths = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    device, pad = model.device, model.config.pad_token_id
    with evaluating(model), torch.enable_grad():
        for batch in batches_by_length(lengths, max_tokens):
            of_batch = [sources[place] for place in batch]
            labels = padded([targets[place] for place in batch], IGNORED, device)
            with scaled_heads(model, len(batch)) as factors:
                outputs = model(
                    input_ids=padded(of_batch, pad, device),
                    attention_mask=mask_of(of_batch, device),
                    labels=labels,
                    skip_logits=True,
                    num_items_in_batch=1,
                )
                each = torch.autograd.grad(outputs.loss, list(factors.values()))
            per_token = torch.cat(each, dim=1) / (labels != IGNORED).sum(1, keepdim=True)
            found[batch] = per_token.cpu().numpy()
    return found


def importance_of_heads(model: PreTrainedModel, sources: Ids, targets: Ids) -> dict[Head, Importance]:
    """Of every head, by gradient and by masking."""
    by_gradient = np.abs(gradients(model, sources, targets))
    before = losses(model, sources, targets)
    found: dict[Head, Importance] = {}
    for head, gradient in zip(heads_of(model), by_gradient.T, strict=True):
        with without_heads(model, [head]):
            change = losses(model, sources, targets) - before
        size = np.abs(change)
        values = gradient.mean(), change.mean(), size.mean(), np.median(gradient), np.median(size)
        found[head] = Importance(*map(float, values))
    return found


def gradients_in_layers(importance: Mapping[Head, Importance]) -> dict[Head, float]:
    """
    The importance by gradient, divided by the L2 norm over all heads of the same kind and layer: by this Michel et al.
    (2019) prune, as gradients of layers differ in size.
    """
    squares: dict[tuple[str, int], float] = defaultdict(float)
    for head, each in importance.items():
        squares[head.kind, head.layer] += each.gradient**2
    return {head: each.gradient / math.sqrt(squares[head.kind, head.layer] or 1.0) for head, each in importance.items()}


def pruned(ordered: Sequence[Head], steps: int = STEPS) -> Iterator[list[Head]]:
    """The heads that are off at each step: none at first, all at last."""
    numbers = dict.fromkeys(round(step * len(ordered) / steps) for step in range(steps + 1))
    yield from (list(ordered[:number]) for number in numbers)


def correlation_of_ranks(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's; NaN if one of them has a single value."""
    ranks = [ranks_of(np.asarray(values, dtype=float)) for values in (one, other)]
    if len(ranks[0]) < 2 or min(rank.std() for rank in ranks) == 0:
        return float("nan")
    return float(np.corrcoef(np.stack(ranks))[0, 1])


def ranks_of(values: np.ndarray) -> np.ndarray:
    """From 0; equal values have the mean of their ranks."""
    _, kinds, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    ranks: np.ndarray = (ends - (counts + 1) / 2)[kinds]
    return ranks
