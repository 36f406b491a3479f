"""A few of the mutations that tests/benchmarks/mutations.py makes by the thousand; the ledger's are in test_ledger_damage.py."""

from __future__ import annotations

import pytest

from tests.benchmarks.mutations import KINDS, measure, rows

NUM_EACH = 40


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ledger"])
def test_damage_is_found_before_use_named_in_one_line_and_replaced_where_there_is_another_source(kind: str) -> None:
    outcomes = measure(NUM_EACH, seed=23, kinds=[kind])
    assert [one for one in outcomes if one.verdict in ("missed", "crashed")] == []
    assert [one for one in outcomes if one.lines is not None and not one.is_named] == []
    assert all(row.met for row in rows(outcomes, {}) if row.trials)


def test_the_same_seed_makes_the_same_mutations() -> None:
    assert measure(10, seed=3, kinds=["certificates"]) == measure(10, seed=3, kinds=["certificates"])
