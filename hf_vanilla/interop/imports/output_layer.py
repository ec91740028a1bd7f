"""
A bias of the output projection, written into its matrix.

Our output projection has none (3.4). But what it reads comes out of a layer normalisation, x = g * n + b, where the
components of n sum to 0. With b = g instead, x / g = n + 1, whose mean is 1 for every x: so a row `r` that gets
`beta / (g * D)` added gives `beta` more for whatever x. What b was before is a bias itself, W (b - g), and goes the
same way. This is exact but for rounding. The decoder's last layer normalisation is read by the output projection alone.
"""

import torch
from torch import Tensor

ABSENT = -100.0
"""The logit of a token that a toolkit does not have: e^-100 changes no other token's probability, even in float64."""


def with_bias(matrix: Tensor, bias: Tensor, scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """
    The matrix and the offset of the layer normalisation with which `matrix @ x + bias` is a product alone.

    Args:
        scale: g of the layer normalisation.
        offset: b of the layer normalisation.
    """
    wide, g, b = matrix.double(), scale.double(), offset.double()
    dead = g == 0  # x is b there, whatever n is: a constant already
    if dead.any():
        constant = torch.zeros_like(g)
        constant[dead.nonzero()[0]] = 1.0
        new_offset = torch.where(constant.bool(), 1.0, b)
    else:
        constant = 1 / (g * len(g))
        new_offset = g
    missing = bias.double() + wide @ (b - new_offset)
    return (wide + torch.outer(missing, constant)).to(matrix.dtype), new_offset.to(offset.dtype)
