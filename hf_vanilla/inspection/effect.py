"""
What hiding a part of the source changes: the drop of the log-probability of each target token.

The part is hidden from the encoder and from the decoder, by the mask, and all other tokens keep their positions.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from ..inference.alignments import MAX_TOKENS
from ..inference.scoring import MAX_LOGITS
from .reading import inputs_of, reading


def effect_of_hiding(
    model: PreTrainedModel, source: Sequence[int], target: Sequence[int], groups: np.ndarray
) -> np.ndarray:
    """
    How much less the logarithm of the probability of each target token is without each part: (target tokens, parts).

    Args:
        groups: For each source token the index of its part. All indexes from 0 are there.
    """
    parts = int(groups.max()) + 1
    shown = torch.ones(1 + parts, len(source), dtype=torch.long)
    shown[1:][torch.from_numpy(groups)[None] == torch.arange(parts)[:, None]] = 0
    if parts == 1:
        raise ValueError("a source of one part cannot be read without it")
    longest = max(len(source), len(target))
    rows = max(1, min(MAX_TOKENS // longest, MAX_LOGITS // (len(target) * model.config.vocab_size)))
    with reading(model):
        each = np.concatenate([_log_probabilities(model, source, target, masks) for masks in shown.split(rows)])
    effects: np.ndarray = (each[:1] - each[1:]).T
    return effects


def _log_probabilities(
    model: PreTrainedModel, source: Sequence[int], target: Sequence[int], masks: torch.Tensor
) -> np.ndarray:
    inputs = inputs_of(model, [source] * len(masks), [target] * len(masks))
    inputs["attention_mask"] = masks.to(model.device)
    positions = torch.arange(len(source), device=model.device).expand(len(masks), -1)
    logits = model(**inputs, position_ids=positions, use_cache=False).logits
    labels = torch.tensor(target, device=model.device).expand(len(masks), -1)
    losses = nn.functional.cross_entropy(logits.transpose(1, 2).float(), labels, reduction="none")
    found: np.ndarray = -losses.cpu().numpy()
    return found
