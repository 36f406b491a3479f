from __future__ import annotations

import math

import pytest

from protocol.kinds.robust_table import OFF, ROBUST_RULES
from protocol.rounds.schedule.sum_rules import DEFAULT_SUMS, GRACE, LEAST_GRACE_S, SumRules


def test_the_guard_is_the_rule_of_that_name_and_none_unless_told() -> None:
    assert DEFAULT_SUMS.guard is ROBUST_RULES[OFF]
    assert {name: SumRules(robust=name).guard for name in ROBUST_RULES} == dict(ROBUST_RULES)


@pytest.mark.parametrize(
    ("share", "num_members", "enough"),
    [(0.9, 10, 9), (0.9, 20, 18), (0.9, 11, 10), (0.9, 9, 9), (0.9, 1, 1), (0.7, 10, 7), (0.5, 5, 3), (0.01, 4, 1)],
)
def test_a_slice_waits_for_that_share_of_the_members_and_then_a_quarter_longer(
    share: float, num_members: int, enough: int
) -> None:
    rules = SumRules(close_share=share)
    assert rules.closes_after_s(1, enough - 1, num_members, 8.0) == math.inf
    for num_in in range(enough, num_members + 1):
        assert rules.closes_after_s(1, num_in, num_members, 8.0) == 8.0 * (1 + GRACE)


def test_a_short_slice_waits_at_least_half_a_second_longer() -> None:
    assert SumRules(close_share=0.9).closes_after_s(1, 9, 10, 0.1) == 0.1 + LEAST_GRACE_S


def test_everybody_is_waited_for_in_patient_rounds_and_where_the_share_is_one() -> None:
    rules = SumRules(close_share=0.9, patient_every=3)
    closes = [index for index in range(1, 10) if rules.closes_after_s(index, 9, 10, 1.0) < math.inf]
    assert closes == [1, 2, 4, 5, 7, 8]
    assert DEFAULT_SUMS.closes_after_s(1, 9, 10, 1.0) == math.inf
