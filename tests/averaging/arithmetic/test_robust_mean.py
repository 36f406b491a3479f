from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from averaging.arithmetic.gram import gram
from averaging.arithmetic.robust_mean import KEPT_TENTHS, NOISE_SQUARED, judged, robust_mean
from averaging.arithmetic.weighted_mean import WeightedSum
from protocol.kinds.robust_table import FEWEST_TO_JUDGE, FEWEST_TO_MEASURE, ROBUST_RULES, most_left_out

OFF, CLIP, AGREE = (ROBUST_RULES[name] for name in ("off", "clip", "clip-agree"))
LENGTH = 2000


def _rows(num: int, *, own: float = 0.6, length: int = LENGTH, seed: int = 1) -> torch.Tensor:
    """Members that have a direction in common, and an own part of this size beside it: (num, length) float32."""
    generator = torch.Generator().manual_seed(seed)
    common_n = torch.randn(length, generator=generator)
    return common_n + own * torch.randn(num, length, generator=generator)


def _oracle(rows: Sequence[Sequence[float]], weights: Sequence[int], leaves_out: bool) -> tuple[list[float], list[int]]:
    """The rule in its own words, in Python's float64: the mean, and the members whose chunk enters it."""

    def median(values: Sequence[float], upper: bool) -> float:
        ordered = sorted(values)
        return ordered[len(ordered) // 2 if upper else (len(ordered) - 1) // 2]

    num = len(rows)
    norms = [math.sqrt(math.fsum(value * value for value in row)) for row in rows]
    limit = median(norms, upper=False)
    clipped = [
        [value * min(1.0, limit / norm) for value in row] if norm else list(row)
        for row, norm in zip(rows, norms, strict=True)
    ]

    def cosine(i: int, j: int) -> float:
        if not norms[i] * norms[j]:
            return 0.0
        return math.fsum(a * b for a, b in zip(rows[i], rows[j], strict=True)) / (norms[i] * norms[j])

    kept = list(range(num))
    if leaves_out and num >= 4:
        agreements = [median([cosine(i, j) for j in range(num) if j != i], upper=False) for i in range(num)]
        usual = median(agreements, upper=True)
        if usual > 0 and usual * usual * len(rows[0]) > 16:
            kept = [i for i in range(num) if agreements[i] >= 0.7 * usual]
    total = sum(weights[i] for i in kept)
    mean = [math.fsum(weights[i] * clipped[i][k] for i in kept) / total for k in range(len(rows[0]))]
    return mean, kept


@pytest.mark.parametrize("num", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("rule", [CLIP, AGREE], ids=lambda rule: rule.name)
def test_the_mean_is_that_of_the_rule_in_float64(num: int, rule: object) -> None:
    rows_mn, weights = _rows(num, length=300), [7 * i + 3 for i in range(num)]
    rows_mn *= torch.linspace(0.5, 2.0, num)[:, None]
    rows_mn[-1] *= -50.0 if num > 3 else 1.0
    expected, kept = _oracle(rows_mn.tolist(), weights, leaves_out=rule is AGREE)
    mean_n, judgement = robust_mean(rows_mn, weights, AGREE if rule is AGREE else CLIP, torch.float64)
    assert [i for i in range(num) if judgement.is_kept[i]] == kept
    assert (len(kept) < num) == (rule is AGREE and num > 3), "the case is not the one that it means to be"
    np.testing.assert_allclose(mean_n.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_off_is_the_plain_weighted_mean_whatever_the_members_send() -> None:
    rows_mn, weights = _rows(5), (3, 1, 1 << 40, 7, 1)
    rows_mn[3] *= -1e6
    total = WeightedSum(LENGTH)
    for row_n, weight in zip(rows_mn, weights, strict=True):
        total.add(weight, row_n)
    mean_n, judgement = robust_mean(rows_mn.clone(), weights, OFF, torch.float32)
    assert mean_n.numpy().tobytes() == total.mean().numpy().tobytes()
    assert judgement.left_out == []


@pytest.mark.parametrize("num", range(1, 65, 7))
def test_equal_members_are_all_kept_as_they_are(num: int) -> None:
    rows_mn = _rows(1).repeat(num, 1)
    mean_n, judgement = robust_mean(rows_mn.clone(), [1] * num, AGREE, torch.float64)
    assert judgement.is_kept.all()
    assert (judgement.factors == 1.0).all()
    torch.testing.assert_close(mean_n, rows_mn[0], rtol=1e-6, atol=0.0)


WRONG = {
    "turned": lambda row_n: -row_n,
    "turned and lengthened": lambda row_n: -100.0 * row_n,
    "noise": lambda row_n: torch.randn(len(row_n), generator=torch.Generator().manual_seed(9)),
    "long noise": lambda row_n: 1e15 * torch.randn(len(row_n), generator=torch.Generator().manual_seed(9)),
    "zeros": torch.zeros_like,
    "half of it only": lambda row_n: torch.where(torch.arange(len(row_n)) < len(row_n) // 5, row_n, 0.0),
}


@pytest.mark.parametrize("num", [4, 8, 10, 20])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_minority_that_sends_wrong_deltas_is_left_out_and_nobody_else(wrong: str, num: int) -> None:
    rows_mn, num_wrong = _rows(num), max(1, num * 3 // 10)
    for i in range(num_wrong):
        rows_mn[i] = WRONG[wrong](rows_mn[i])
    _, judgement = robust_mean(rows_mn.clone(), [1] * num, AGREE, torch.float32)
    assert judgement.left_out == list(range(num_wrong))
    assert (judgement.shares[:num_wrong] < KEPT_TENTHS / 10).all()


def test_what_is_longer_than_the_median_is_shortened_to_it_and_not_left_out() -> None:
    rows_mn = _rows(5)
    rows_mn[2] *= 100.0
    mean_n, judgement = robust_mean(rows_mn.clone(), [1] * 5, AGREE, torch.float32)
    norms = torch.linalg.vector_norm(rows_mn, dim=1)
    median = float(norms.sort()[0][2])
    assert judgement.is_kept.all()
    assert float(judgement.factors[2]) == pytest.approx(median / float(norms[2]))
    assert float(torch.linalg.vector_norm(mean_n)) <= median * (1 + 1e-6)


def test_where_members_do_not_agree_everybody_is_kept() -> None:
    rows_mn = torch.randn(8, LENGTH, generator=torch.Generator().manual_seed(4))
    _, judgement = robust_mean(rows_mn, [1] * 8, AGREE, torch.float32)
    assert judgement.median**2 * LENGTH < NOISE_SQUARED
    assert judgement.left_out == []


def test_of_so_few_values_that_chance_could_make_them_agree_everybody_is_kept() -> None:
    rows_mn = _rows(8, length=12)
    rows_mn[0] *= -1.0
    assert judged(gram(rows_mn), 12, AGREE).left_out == []
    assert judged(gram(rows_mn), LENGTH, AGREE).left_out == [0], (
        "with as much agreement over many values it is left out"
    )


def test_with_fewer_than_four_members_nobody_is_left_out() -> None:
    rows_mn = _rows(FEWEST_TO_JUDGE - 1)
    rows_mn[0] *= -1.0
    assert robust_mean(rows_mn, [1] * 3, AGREE, torch.float32)[1].left_out == []


def test_zeros_of_most_members_leave_a_mean_of_zeros_and_no_number_that_is_none() -> None:
    rows_mn = torch.zeros(5, LENGTH)
    rows_mn[4] = 1e18
    mean_n, judgement = robust_mean(rows_mn, [1] * 5, AGREE, torch.float32)
    assert not mean_n.any()
    assert judgement.left_out == []
    assert not judgement.agreements.any()


@pytest.mark.parametrize("num", [4, 5, 9, 16, 63, 64])
@pytest.mark.parametrize("seed", range(5))
def test_at_most_half_of_the_members_are_left_out_of_a_chunk_whatever_they_send(num: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(3, 200, generator=generator)
    rows_mn = directions[torch.randint(3, (num,), generator=generator)] + 0.3 * torch.randn(
        num, 200, generator=generator
    )
    _, judgement = robust_mean(rows_mn, [1] * num, AGREE, torch.float32)
    assert len(judgement.left_out) <= most_left_out(num) == num // 2


# --- strangers ----------------------------------------------------------------------------------------------------------------


def _with_strangers(num_trusted: int, strangers_mn: torch.Tensor) -> tuple[torch.Tensor, list[bool]]:
    rows_mn = torch.cat([_rows(num_trusted), strangers_mn])
    return rows_mn, [False] * num_trusted + [True] * len(strangers_mn)


@pytest.mark.parametrize("num_trusted", [1, 2, 3, 4, 9])
def test_a_majority_of_strangers_that_agree_on_the_opposite_turns_no_mean(num_trusted: int) -> None:
    rows_mn, are_strangers = _with_strangers(num_trusted, -3.0 * _rows(20, own=0.1))
    honest_n, alone = robust_mean(rows_mn[:num_trusted].clone(), [100] * num_trusted, AGREE, torch.float32)
    weights = [100] * num_trusted + [5] * 20
    mean_n, judgement = robust_mean(rows_mn.clone(), weights, AGREE, torch.float32, are_strangers)
    assert judgement.left_out == list(range(num_trusted, num_trusted + 20))
    assert torch.equal(mean_n, honest_n)
    assert judgement.median == alone.median
    assert np.array_equal(judgement.factors[:num_trusted], alone.factors)
    _, misled = robust_mean(rows_mn.clone(), weights, AGREE, torch.float32)
    assert misled.left_out != judgement.left_out, "over all heads the strangers would win"


@pytest.mark.parametrize("num_trusted", [1, 2, 3, 4, 9])
def test_strangers_that_agree_are_kept_and_clipped_by_the_median_of_the_others(num_trusted: int) -> None:
    rows_mn, are_strangers = _with_strangers(num_trusted, 50.0 * _rows(6, seed=1))
    judgement = judged(gram(rows_mn), LENGTH, AGREE, are_strangers)
    assert judgement.left_out == []
    norms = rows_mn.double().norm(dim=1).numpy()
    limit = np.sort(norms[:num_trusted])[(num_trusted - 1) // 2]
    assert norms[num_trusted:] * judgement.factors[num_trusted:] == pytest.approx(limit, rel=1e-6)


def test_with_few_others_a_stranger_is_kept_if_it_points_along_with_them_and_with_more_by_the_measure() -> None:
    generator = torch.Generator().manual_seed(5)
    slant_mn = 0.25 * _rows(1) + torch.randn(1, LENGTH, generator=generator)
    for num_trusted in range(1, FEWEST_TO_JUDGE + 1):
        rows_mn, are_strangers = _with_strangers(num_trusted, slant_mn)
        judgement = judged(gram(rows_mn), LENGTH, AGREE, are_strangers)
        assert (judgement.left_out == []) == (num_trusted < FEWEST_TO_MEASURE)
        assert all(0.0 < share < 1.0 for share in judgement.shares[num_trusted:])


def test_strangers_hold_a_quarter_of_a_chunk_also_where_others_are_left_out_of_it() -> None:
    rows_mn = torch.ones(8, 400)
    rows_mn[5:7] *= -1.0  # two of seven keepers disagree
    rows_mn[7] *= 0.5
    weights = [100] * 7 + [233]
    mean_n, judgement = robust_mean(rows_mn.clone(), weights, AGREE, torch.float64, [False] * 7 + [True])
    assert judgement.left_out == [5, 6]
    assert mean_n[0] == pytest.approx((500 * 1.0 + 166 * 0.5) / 666)


def test_who_is_a_stranger_changes_nothing_where_nobody_is() -> None:
    for num in (1, 2, 3, 5, 8):
        rows_mn, weights = _rows(num), [3 + i for i in range(num)]
        plain_n, plain = robust_mean(rows_mn.clone(), weights, AGREE, torch.float32)
        told_n, told = robust_mean(rows_mn.clone(), weights, AGREE, torch.float32, [False] * num)
        assert torch.equal(plain_n, told_n)
        assert (plain.left_out, plain.median) == (told.left_out, told.median)
