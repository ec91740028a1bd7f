"""How probable given targets are."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from .batching import batches_by_length, mask_of, padded

MAX_LOGITS = 2**25  # of a batch: 128 MiB in float32
IGNORED = -100


@dataclass(frozen=True)
class Score:
    """
    Args:
        log_probability: Of the whole target with its end, given the source. Natural logarithm.
        normalised: The same divided by the length penalty of the model's search: by this n-best lists are sorted.
        tokens: The target's tokens, as they stand in the vocabulary.
        token_log_probabilities: Of each of them, given the source and the tokens before it.
    """

    log_probability: float
    normalised: float
    tokens: list[str]
    token_log_probabilities: list[float]


@torch.no_grad()
def log_probabilities(
    model: PreTrainedModel, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], max_tokens: int
) -> list[list[float]]:
    """Of each token of each target, given its source and the tokens before it. All are token ids."""
    found: list[list[float]] = [[]] * len(targets)
    lengths = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    max_tokens = min(max_tokens, MAX_LOGITS // model.config.vocab_size)
    for batch in batches_by_length(lengths, max_tokens):
        rows = [targets[place] for place in batch]
        for place, row in zip(batch, _of_batch(model, [sources[place] for place in batch], rows), strict=True):
            found[place] = row[: len(targets[place])]
    return found


def _of_batch(
    model: PreTrainedModel, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[list[float]]:
    device, pad = model.device, model.config.pad_token_id
    start = start_token(model)
    logits = model(
        input_ids=padded(sources, pad, device),
        attention_mask=mask_of(sources, device),
        decoder_input_ids=padded([[start, *target[:-1]] for target in targets], pad, device),
        use_cache=False,
    ).logits
    labels = padded(targets, IGNORED, device)
    losses = nn.functional.cross_entropy(logits.transpose(1, 2).float(), labels, reduction="none", ignore_index=IGNORED)
    return (-losses).tolist()


def start_token(model: PreTrainedModel) -> int:
    config = model.generation_config
    return config.bos_token_id if config.decoder_start_token_id is None else config.decoder_start_token_id


def normalised(log_probability: float, length: int, exponent: float) -> float:
    """As beam search ranks hypotheses. An exponent of a class of its own may stand for another penalty (GNMT's)."""
    return float(log_probability / length**exponent)
