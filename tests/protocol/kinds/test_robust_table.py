from __future__ import annotations

import pytest

from protocol.kinds.robust_table import FEWEST_TO_JUDGE, OFF, ROBUST_RULES, most_left_out


def test_off_neither_shortens_nor_leaves_out_and_who_leaves_out_also_shortens() -> None:
    assert not ROBUST_RULES[OFF].clips
    assert all(rule.clips or not rule.leaves_out for rule in ROBUST_RULES.values())


@pytest.mark.parametrize("num_members", range(1, 65))
def test_more_than_half_of_the_members_are_never_left_out_and_of_few_none(num_members: int) -> None:
    most = most_left_out(num_members)
    assert most <= num_members - most
    assert (most == 0) == (num_members < FEWEST_TO_JUDGE)
