"""Signed codes of values divided by a scale, for every codec of small integers: in blocks of a vector and in rows of tokens alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from averaging.codecs.codec import FloatArray

CodeArray = npt.NDArray[np.int8]


def divided(values: FloatArray, scales: FloatArray) -> FloatArray:
    """(groups, n) values divided by (groups,) scales, in new memory. A group without a scale is divided by infinity, which makes
    zeros.
    """
    # torch divides, rounds and multiplies twice as fast as NumPy and more
    divisors = torch.from_numpy(np.where(scales > 0, scales, np.float32(np.inf)))
    relative: FloatArray = torch.div(torch.from_numpy(values), divisors[:, None]).numpy()
    return relative


def rounded(relative: FloatArray) -> CodeArray:
    """Half to even, in place. Nothing is clamped: a scale is the maximum / 127 (or 7) to within 2^-24, or larger, so that no quotient
    comes near to half a code beyond it.
    """
    codes: CodeArray = torch.from_numpy(relative).round_().to(torch.int8).numpy()
    return codes


def packed(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """(..., n / 2) of (..., n) codes in the low halves of bytes, n even: two a byte, the first one in the low half."""
    return ((codes[..., 0::2] & 15) | (codes[..., 1::2] << 4)).astype(np.uint8, copy=False)
