"""The mean of one chunk that no minority of its members can turn: clip, then leave out whoever disagrees.

Clipping to the median norm bounds the weight of one chunk; agreement in direction finds those that push elsewhere. Both look at one
chunk alone, so a chunk is summed as soon as all members have brought it, and costs no byte more. Norms and agreements are judged by
heads, never by tokens, which a member states itself. In an open run all medians are over keepers and members: a thousand strangers
move none of them. Every number is a single IEEE operation in a fixed order, so all machines with
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
from protocol.kinds.robust_table import FEWEST_TO_JUDGE, FEWEST_TO_MEASURE, RobustFacts
from protocol.rounds.lineage.stranger_weights import with_strangers_bounded

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
        agreements: (m,) float64: the median of the cosines to the other keepers and members, in [-1, 1].
        median: the median of these of keepers and members, the upper one of two; 0 where there is one, or none.
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
        """(m,) float64: each agreement as a share of the median one, within [-1, 1]; as it is where that is not above 0."""
        return np.clip(self.agreements / self.median if self.median > 0.0 else self.agreements, -1.0, 1.0)


def judged(
    gram_mm: DoubleArray, num_values: int, rule: RobustFacts, are_strangers: Sequence[bool] | None = None
) -> Judgement:
    """Judge one chunk of m members by `rule`.

    Args:
        gram_mm: (m, m) float64, the products of their values, m at least 1.
        num_values: of the chunk, at least 1.
        are_strangers: of each member whether it is a stranger; at least one is none. None where nobody is.
    """
    norms = np.sqrt(np.diagonal(gram_mm))
    are_out = np.zeros(len(norms), dtype=np.bool_) if are_strangers is None else np.array(are_strangers, dtype=np.bool_)
    trusted = np.flatnonzero(~are_out)
    factors = np.ones(len(norms), dtype=np.float32)
    if rule.clips:
        limit = np.sort(norms[trusted])[(len(trusted) - 1) // 2]
        np.divide(limit, norms, out=factors, where=norms > limit, casting="same_kind")
    agreements, median = _agreements(gram_mm, norms, trusted)
    is_kept = np.ones(len(norms), dtype=np.bool_)
    if rule.leaves_out and len(trusted) < FEWEST_TO_MEASURE:
        is_kept = ~are_out | (agreements > 0.0)
    elif rule.leaves_out and median > 0.0 and median * median * num_values > NOISE_SQUARED:
        agrees = 10.0 * agreements >= KEPT_TENTHS * median
        is_kept = agrees if len(trusted) >= FEWEST_TO_JUDGE else ~are_out | agrees
    return Judgement(factors, is_kept, agreements, median)


def _agreements(gram_mm: DoubleArray, norms: DoubleArray, trusted: npt.NDArray[np.intp]) -> tuple[DoubleArray, float]:
    """Each member's lower median cosine to the `trusted` others, and the upper median of these of the trusted. A chunk of zeros agrees
    with nobody, and whoever has no trusted others, with nobody either.
    """
    scale = norms[:, None] * norms[None, :]
    cosines = np.zeros_like(gram_mm)
    np.divide(gram_mm, scale, out=cosines, where=scale > 0.0)
    num, agreements = len(trusted), np.zeros(len(norms))
    strangers = np.setdiff1d(np.arange(len(norms)), trusted)
    if len(strangers):
        agreements[strangers] = np.sort(cosines[np.ix_(strangers, trusted)], axis=1)[:, (num - 1) // 2]
    if num < 2:
        return agreements, 0.0
    others = cosines[np.ix_(trusted, trusted)][~np.eye(num, dtype=np.bool_)].reshape(num, num - 1)
    agreements[trusted] = np.sort(others, axis=1)[:, (num - 2) // 2]
    return agreements, float(np.sort(agreements[trusted])[num // 2])


def robust_mean(
    rows_mn: torch.Tensor,
    weights: Sequence[int],
    rule: RobustFacts,
    dtype: torch.dtype,
    are_strangers: Sequence[bool] | None = None,
) -> tuple[torch.Tensor, Judgement]:
    """The weighted mean (n,) float32 of one chunk, and the judgement of its members. Strangers hold at most a quarter of its weight,
    however many others are left out of it.

    Args:
        rows_mn: (m, n) float32, finite and at most 1e18 in size; it is overwritten.
        weights: of the members, in tokens, as of `WeightedSum.add`.
        dtype: of the sum, as `sum_dtype` says.
        are_strangers: as of `judged`.
    """
    judgement = judged(gram(rows_mn), rows_mn.shape[1], rule, are_strangers)
    total = WeightedSum(rows_mn.shape[1], dtype)
    kept = [weight if is_kept else 0 for weight, is_kept in zip(weights, judgement.is_kept, strict=True)]
    if are_strangers is not None:
        kept = with_strangers_bounded(kept, are_strangers)
    for row_n, weight, factor, is_kept in zip(rows_mn, kept, judgement.factors, judgement.is_kept, strict=True):
        if is_kept:
            total.add(weight, row_n if factor == 1.0 else row_n.mul_(float(factor)), is_spent=True)
    return total.mean().float(), judgement
