from __future__ import annotations

import dataclasses
from types import MappingProxyType

import pytest

from peer.status.round_progress import EtaEstimator, round_progress, stands_still
from protocol.frozen import replace
from tests.protocol.rounds.round_table import Table


def test_progress_counts_what_all_who_take_part_have_ready() -> None:
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 1 for seat in table.live()))
    state, now_s = table.live()[0].state, table.now_s
    found = round_progress(state, now_s)
    assert found["round_target_tokens"] == state.link.target_tokens
    assert found["round_longest_s"] == state.config.longest_interval_s
    assert found["round_waited_s"] == pytest.approx(now_s - state.committed_at_s)
    ready = found["round_tokens_ready"]
    more = round_progress(replace(state, tokens_ready=state.tokens_ready + 7), now_s)["round_tokens_ready"]
    assert isinstance(ready, int)
    assert more == ready + 7 * state.can_contribute


def test_run_that_is_over_has_no_next_round() -> None:
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 1 for seat in table.live()))
    state = table.live()[0].state
    over = replace(state, config=dataclasses.replace(state.config, total_tokens=state.run_tokens))
    assert round_progress(over, table.now_s) == {}


def test_run_in_which_nobody_has_tokens_long_after_a_round_was_due_stands_still() -> None:
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 1 for seat in table.live()))
    idle = replace(table.live()[0].state, peers=MappingProxyType({}), tokens_ready=0)
    due_s = idle.committed_at_s + idle.config.longest_interval_s
    assert stands_still(idle, due_s + 1.0)
    assert not stands_still(idle, due_s - 1.0)
    assert not stands_still(replace(idle, tokens_ready=7), due_s + 1.0)


def test_pace_needs_two_rounds_and_begins_anew_on_another_lineage() -> None:
    eta = EtaEstimator()
    eta.committed(300, 100.0)
    assert eta.left_s(300, 1200) is None
    eta.committed(600, 110.0)
    assert eta.left_s(600, 1200) == pytest.approx(20.0)
    eta.begin_anew()
    assert eta.left_s(600, 1200) is None
