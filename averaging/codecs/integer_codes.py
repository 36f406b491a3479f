"""Signed codes of values divided by a scale, for all codecs of small integers, in blocks of a vector and in rows of tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from averaging.codecs.codec import FloatArray

CodeArray = npt.NDArray[np.int8]


def divided(values: FloatArray, scales: FloatArray) -> FloatArray:
    """Divide (groups, n) values by (groups,) scales, in new memory. Groups without a scale become zeros."""
    # A scale of zero becomes infinity, which makes zeros. torch is faster than NumPy here.
    divisors = torch.from_numpy(np.where(scales > 0, scales, np.float32(np.inf)))
    relative: FloatArray = torch.div(torch.from_numpy(values), divisors[:, None]).numpy()
    return relative


def rounded(relative: FloatArray) -> CodeArray:
    """Round half to even, in place. No clamping is needed: a scale is the maximum / 127 (or 7) to within 2^-24, or larger, so no
    quotient comes near half a code beyond it.
    """
    codes: CodeArray = torch.from_numpy(relative).round_().to(torch.int8).numpy()
    return codes


def packed(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Pack (..., n) codes in the low halves of bytes, n even, into (..., n / 2): two to a byte, the first in the low half."""
    return ((codes[..., 0::2] & 15) | (codes[..., 1::2] << 4)).astype(np.uint8, copy=False)
