"""Which texts go through the model together."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def batches_by_length(
    lengths: Sequence[int], max_tokens: int, max_rows: int | None = None, max_weights: int | None = None
) -> Iterator[list[int]]:
    """
    Places in `lengths`, texts of about the same length together.

    The longest come first, so that a batch too large for memory fails at once.

    Args:
        max_tokens: Of a batch, padding counted. A single text may have more.
        max_rows: The most texts of a batch.
        max_weights: The most attention weights of a head in a batch: length times length of each text.
    """
    remaining = sorted(range(len(lengths)), key=lambda place: lengths[place], reverse=True)
    while remaining:
        longest = max(1, lengths[remaining[0]])
        size = min(max_tokens // longest, max_rows or len(remaining))
        size = max(1, size if max_weights is None else min(size, max_weights // longest**2))
        yield remaining[:size]
        remaining = remaining[size:]


def padded(ids: Sequence[Sequence[int]], padding: int, device: torch.device) -> Tensor:
    """Token ids as rows of the same length: (B, T)."""
    longest = max(map(len, ids))
    return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in ids], device=device)


def mask_of(ids: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """1 for tokens, 0 for padding: (B, T)."""
    lengths = torch.tensor([len(row) for row in ids], device=device)
    return (torch.arange(int(lengths.max()), device=device) < lengths[:, None]).long()
