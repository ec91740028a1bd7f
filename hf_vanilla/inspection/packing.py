"""
Attention maps in few bytes, for a page: the square root of each weight in a byte, so that it is off by 0.004 at most.

Where all weights are too many, only the largest of each row are there; what is left of a row can be told from them.
"""

import base64
import zlib
from collections.abc import Sequence

import numpy as np

LARGEST = (None, 32, 16, 8, 6, 4)
"""How many weights of each row to keep, in the order in which that is tried. None: all."""


def codes_of(weights: np.ndarray) -> np.ndarray:
    """Weights from 0 to 1 as bytes."""
    return np.round(np.sqrt(weights.clip(0, 1)) * 255).astype(np.uint8)


def packed(maps: Sequence[np.ndarray], largest: int | None, norms: np.ndarray) -> str:
    """
    Base64 of the deflated bytes of all maps, one after the other, and of the norms behind them.

    Args:
        maps: Of (queries, keys).
        largest: If given, each map is three planes of (largest, queries): the lower and the upper byte of how far each
            key is from the one before, and the codes. A row with fewer keys ends in keys of code 0.
        norms: From 0 to 1, for bytes like the weights.
    """
    pieces = [plain(each) if largest is None else sparse(each, largest) for each in maps]
    deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = b"".join([*map(deflate.compress, pieces), deflate.compress(codes_of(norms).tobytes()), deflate.flush()])
    return base64.b64encode(data).decode()


def plain(weights: np.ndarray) -> bytes:
    return codes_of(weights).tobytes()


def sparse(weights: np.ndarray, largest: int) -> bytes:
    kept = min(largest, weights.shape[1])
    keys = np.sort(np.argpartition(weights, -kept, axis=-1)[:, -kept:], axis=-1)
    values = np.take_along_axis(weights, keys, axis=-1)
    gaps = np.diff(keys, axis=-1, prepend=0)
    missing = ((0, 0), (0, largest - kept))
    gaps, codes = np.pad(gaps, missing).T, np.pad(codes_of(values), missing).T
    return b"".join(plane.astype(np.uint8).tobytes() for plane in (gaps & 255, gaps >> 8, codes))
