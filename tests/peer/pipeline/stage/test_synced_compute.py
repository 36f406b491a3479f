"""What a replica of synced steps holds of micro-batches, and when it is freed."""

from __future__ import annotations

import pytest

from peer.pipeline.stage.synced_compute import SyncedCompute
from protocol.pipeline.schedule import Pass
from tests.peer.compute_world import START, TOOLS, ones_at


def _done(*numbers: int) -> SyncedCompute:
    """The middle stage after the backward passes of these."""
    work = SyncedCompute(TOOLS, 0, 1)
    work.open()
    for number in numbers:
        forward, backward = (ones_at(START, Pass(number, way)) for way in (False, True))
        work.serve(START, Pass(number, True), forward, backward)
    return work


def test_gradients_lie_apart_until_they_are_granted_or_dropped() -> None:
    work = _done(0, 1)
    assert work.in_flight == {0, 1}
    work.grant(0)
    assert work.in_flight == {1}
    work.drop(1)
    assert not work.in_flight


def test_whatever_lies_apart_is_freed_when_the_sums_are_added_up() -> None:
    work = _done(0, 1)
    work.grant(0)
    square = work.total([work.own_sum()])
    assert not work.in_flight
    assert work.take_mean_step(START, square, 1)


@pytest.mark.parametrize("how", ["forgotten", "without any that counts"])
def test_whatever_lies_apart_is_freed_where_nothing_of_the_step_counts(how: str) -> None:
    work = _done(0)
    if how == "forgotten":
        work.forget()
    else:
        assert not work.take_mean_step(START, 0.0, 0)
    assert not work.in_flight
