from __future__ import annotations

from protocol.kinds.robust_table import OFF, ROBUST_RULES
from protocol.rounds.schedule.sum_rules import DEFAULT_SUMS, SumRules


def test_the_guard_is_the_rule_of_that_name_and_none_unless_told() -> None:
    assert DEFAULT_SUMS.guard is ROBUST_RULES[OFF]
    assert {name: SumRules(robust=name).guard for name in ROBUST_RULES} == dict(ROBUST_RULES)
