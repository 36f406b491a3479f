"""The mean of one chunk that no minority of its members can turn: clip, then leave out whoever disagrees.

Clipping to the median norm bounds the weight of one chunk; agreement in direction finds those that push elsewhere. Both look at one
chunk alone, so a chunk is summed as soon as all members have brought it, and costs no byte more. Norms and agreements are judged by
heads, never by tokens, which a member states itself. Every number is a single IEEE operation in a fixed order, so all machines with
the same chunks find the same.

Clipping before a robust rule follows ARC (https://arxiv.org/abs/2405.14432). Rules for each coordinate are not offered: with sparse
contributions they lose much of the work of honest members (https://arxiv.org/abs/2505.01454 has the reason).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from averaging.arithmetic.gram import DoubleArray, gram
from averaging.arithmetic.weighted_mean import WeightedSum
from protocol.kinds.robust_table import FEWEST_TO_JUDGE, RobustFacts

KEPT_TENTHS: Final = 7
"""A chunk is kept if its agreement is at least so many tenths of the median agreement."""

NOISE_SQUARED: Final = 16.0
"""Square of a number of standard deviations: an agreement of so many or fewer may be chance, and then everybody is kept. The cosine
of two random vectors of n values has a standard deviation of 1 / sqrt(n).
"""


@dataclass(frozen=True, eq=False)
class Judgement:
    """The findings of a rule about one chunk of each of m members, in their order.

    Attributes:
        factors: (m,) float32 in [0, 1], with which the member's values are multiplied.
        is_kept: (m,) bool: whether they enter the mean.
        agreements: (m,) float64: the median of the cosines to the others, in [-1, 1].
        median: the median of these, the upper one of two.
    """

    factors: npt.NDArray[np.float32]
    is_kept: npt.NDArray[np.bool_]
    agreements: DoubleArray
    median: float

    @property
    def left_out(self) -> Sequence[int]:
        """The numbers of the members whose chunk does not enter the mean."""
        return [number for number, is_kept in enumerate(self.is_kept) if not is_kept]

    @property
    def shares(self) -> DoubleArray:
        """(m,) float64: each agreement as a share of the median one, within [-1, 1]. Only of a chunk that leaves somebody out."""
        return np.clip(self.agreements / self.median, -1.0, 1.0)


def judged(gram_mm: DoubleArray, num_values: int, rule: RobustFacts) -> Judgement:
    """Judge one chunk of m members by `rule`.

    Args:
        gram_mm: (m, m) float64, the products of their values, m at least 1.
        num_values: of the chunk, at least 1.
    """
    norms = np.sqrt(np.diagonal(gram_mm))
    factors = np.ones(len(norms), dtype=np.float32)
    if rule.clips:
        limit = np.sort(norms)[(len(norms) - 1) // 2]
        np.divide(limit, norms, out=factors, where=norms > limit, casting="same_kind")
    agreements, median = _agreements(gram_mm, norms)
    has_meaning = len(norms) >= FEWEST_TO_JUDGE and median > 0.0 and median * median * num_values > NOISE_SQUARED
    if rule.leaves_out and has_meaning:
        is_kept = 10.0 * agreements >= KEPT_TENTHS * median
    else:
        is_kept = np.ones(len(norms), dtype=np.bool_)
    return Judgement(factors, is_kept, agreements, median)


def _agreements(gram_mm: DoubleArray, norms: DoubleArray) -> tuple[DoubleArray, float]:
    """Each member's lower median cosine to the others, and the upper median of these. A chunk of zeros agrees with nobody."""
    num = len(norms)
    if num < 2:
        return np.zeros(num), 0.0
    scale = norms[:, None] * norms[None, :]
    cosines = np.zeros_like(gram_mm)
    np.divide(gram_mm, scale, out=cosines, where=scale > 0.0)
    others = cosines[~np.eye(num, dtype=np.bool_)].reshape(num, num - 1)
    agreements: DoubleArray = np.sort(others, axis=1)[:, (num - 2) // 2]
    return agreements, float(np.sort(agreements)[num // 2])


def robust_mean(
    rows_mn: torch.Tensor, weights: Sequence[int], rule: RobustFacts, dtype: torch.dtype
) -> tuple[torch.Tensor, Judgement]:
    """The weighted mean (n,) float32 of one chunk, and the judgement of its members.

    Args:
        rows_mn: (m, n) float32, finite and at most 1e18 in size; it is overwritten.
        weights: of the members, in tokens, as of `WeightedSum.add`.
        dtype: of the sum, as `sum_dtype` says.
    """
    judgement = judged(gram(rows_mn), rows_mn.shape[1], rule)
    total = WeightedSum(rows_mn.shape[1], dtype)
    for row_n, weight, factor, is_kept in zip(rows_mn, weights, judgement.factors, judgement.is_kept, strict=True):
        if is_kept:
            total.add(weight, row_n if factor == 1.0 else row_n.mul_(float(factor)), is_spent=True)
    return total.mean().float(), judgement
