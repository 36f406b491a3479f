"""The products of several vectors with each other, with the same bits on every machine.

Number k of the products of two vectors is added to the sum of lane k mod 8, k ascending; then the lanes are joined in a fixed order.
A product of two float32 numbers is exact in float64, so each addition rounds once, and a fused one would round to the same number.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from averaging.codecs.compiled import BLOCKS

LANES: Final = 8

DoubleArray = npt.NDArray[np.float64]


def gram(rows_mn: torch.Tensor) -> DoubleArray:
    """The (m, m) float64 products of each pair of (m, n) float32 rows, of finite values up to 1e18 in size."""
    sums = BLOCKS.gram(rows_mn) if BLOCKS is not None else None
    return joined(lane_sums(rows_mn) if sums is None else sums)


def lane_sums(rows_mn: torch.Tensor) -> DoubleArray:
    """(m, m, 8) sums of each lane, without the compiled library."""
    num_rows, length = rows_mn.shape
    wide = np.zeros((num_rows, -(-length // LANES) * LANES))
    wide[:, :length] = rows_mn.numpy()
    sums = np.zeros((num_rows, num_rows, LANES))
    for begin in range(0, wide.shape[1], LANES):
        part = wide[:, begin : begin + LANES]
        sums += part[:, None, :] * part[None, :, :]
    return sums


def joined(sums: DoubleArray) -> DoubleArray:
    """(m, m) sums over the lanes, from those of pairs (i, j) with j <= i."""
    one, two, three, four, five, six, seven, eight = np.moveaxis(sums, -1, 0)
    lower: DoubleArray = np.tril(((one + five) + (three + seven)) + ((two + six) + (four + eight)))
    both: DoubleArray = lower + np.tril(lower, -1).T
    return both
