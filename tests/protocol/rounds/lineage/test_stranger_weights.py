from __future__ import annotations

import random

import pytest

from protocol.rounds.lineage.stranger_weights import weights_of, with_strangers_bounded

NO, YES = False, True


@pytest.mark.parametrize(
    ("tokens", "are_strangers", "weights"),
    [
        ([100, 100], [NO, NO], [100, 100]),
        ([100, 900], [NO, NO], [100, 400]),
        ([300, 90], [NO, YES], [300, 90]),
        ([300, 300], [NO, YES], [300, 100]),
        ([100, 200, 300, 10**9], [NO, NO, NO, YES], [100, 200, 300, 200]),
        ([100, 200, 300, 500, 10**9], [NO, NO, NO, NO, YES], [100, 200, 300, 400, 200]),
        ([300, 50, 50], [NO, YES, YES], [300, 50, 50]),
        ([300, 200, 100], [NO, YES, YES], [300, 66, 33]),
        ([2, 10, 10], [NO, YES, YES], [2, 0, 0]),
        ([10, 10], [YES, YES], [0, 0]),
        ([10], [YES], [0]),
        ([], [], []),
    ],
)
def test_a_stranger_weighs_at_most_the_lower_median_and_all_together_a_quarter(
    tokens: list[int], are_strangers: list[bool], weights: list[int]
) -> None:
    assert weights_of(tokens, are_strangers, 400) == weights


@pytest.mark.parametrize("seed", range(20))
def test_whatever_strangers_claim_they_hold_at_most_a_quarter_and_no_other_weight_is_changed(seed: int) -> None:
    chance = random.Random(seed)
    honest = [chance.randrange(1, 1000) for _ in range(chance.randrange(1, 9))]
    lies = [chance.choice([1, 50, 1 << 53]) for _ in range(chance.randrange(0, 56))]
    cap, are_strangers = chance.randrange(1, 2000), [NO] * len(honest) + [YES] * len(lies)
    weights = weights_of([*honest, *lies], are_strangers, cap)
    assert weights[: len(honest)] == [min(tokens, cap) for tokens in honest]
    theirs = weights[len(honest) :]
    assert 4 * sum(theirs) <= sum(weights)
    assert max(theirs, default=0) <= sorted(weights[: len(honest)])[(len(honest) - 1) // 2]
    order = chance.sample(range(len(weights)), len(weights))
    again = weights_of([[*honest, *lies][i] for i in order], [are_strangers[i] for i in order], cap)
    assert again == [weights[i] for i in order], "the order of the members changes nothing"


def test_where_others_are_left_out_the_strangers_that_stay_are_scaled_again() -> None:
    assert with_strangers_bounded([90, 0, 0, 60, 30], [NO, NO, NO, YES, YES]) == [90, 0, 0, 20, 10]
