"""The data that one stage of a lane keeps of micro-batches, and when it is freed."""

from __future__ import annotations

import pytest

from peer.pipeline.stage.lane_compute import LaneWork
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from tests.peer.compute_world import FORM, START, TOOLS, ones_at
from tests.peer.whole_snapshot import in_memory, taken


def _arrives(work: LaneWork, pass_: Pass, at: Point = START) -> None:
    work.arrived(ones_at(at, pass_), 0, at, pass_)


def _middle() -> LaneWork:
    work = LaneWork(TOOLS, 0, 1)
    work.open()
    return work


def test_of_a_step_nothing_is_held_once_its_micro_batches_have_gone_back() -> None:
    work, numbers = _middle(), range(FORM.config.num_micro_batches)
    for number in numbers:
        _arrives(work, Pass(number, False))
        work.run_pass(0, START, Pass(number, False))
    assert work.in_flight == frozenset(numbers)
    for number in numbers:
        _arrives(work, Pass(number, True))
        work.run_pass(0, START, Pass(number, True))
        assert work.in_flight == frozenset(numbers[number + 1 :])
    assert work.take_step(START, work.square())
    assert not work.in_flight


@pytest.mark.parametrize("is_run", [False, True])
def test_back_at_a_snapshot_what_was_in_flight_is_freed(is_run: bool) -> None:
    work = _middle()
    snapshot = in_memory(taken(work))
    _arrives(work, Pass(0, False))
    if is_run:
        work.run_pass(0, START, Pass(0, False))
    assert work.in_flight == {0}
    work.restore(snapshot)
    assert not work.in_flight
