"""The values that a lane's messages accept and refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, RunId
from protocol.pipeline.messages import lane_messages as m
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point

AT = Point(4, 3)
MEMBERS = (PeerId("alice"), PeerId("bob"), PeerId("carol"))
MESSAGES: tuple[m.LaneMessage, ...] = (
    m.LaneBegin(1, 0, Point(4, 0), MEMBERS),
    m.LaneSquare(1, 2, AT, 0.25),
    m.LaneStep(1, 2, AT, 0.5),
    m.LaneCopied(1, 2, AT),
    m.LaneKeep(1, 2, AT),
    m.LaneBack(1, 3, AT, 2, MEMBERS),
    m.LaneLoaded(1, 3),
    m.LaneLoadFailed(1, 3, "nobody has it"),
    m.LaneResume(1, 3),
    m.LaneEnd(1, 3, AT, 64, MEMBERS, "no spare"),
    m.LaneEnd(1, 3, AT, 0, (), "a snapshot is lost"),
    m.LanePing(1, 3),
    m.LaneLeave(1, 3, "asked to leave"),
    m.LaneHere(1, 3),
    m.LaneSpare(2, 7),
    m.LaneClaim(1, AT, 2, 4096, MEMBERS[0]),
)
PARCELS: tuple[m.LaneParcel, ...] = (
    m.LanePassed(1, 3, AT, 5, False, 4188),
    m.LanePassed(1, 3, AT, 5, True, 4188),
    m.LaneCopy(1, 3, AT, 2, 1 << 33),
    m.LaneFetch(1, 3, AT, 2),
    m.LaneAnswer(""),
    m.LaneAnswer("a boundary message of another step"),
    m.LaneGift(1, AT, 2, 4096, 1 << 20),
)
_TOO_LARGE = 1 << 32


@pytest.mark.parametrize("message", [*MESSAGES[:-2], *PARCELS[:4]], ids=lambda message: type(message).__name__)
def test_a_lane_or_a_time_line_that_does_not_fit_cannot_be_named(message: m.LaneMessage) -> None:
    for change in ({"lane": -1}, {"lane": _TOO_LARGE}, {"epoch": -1}, {"epoch": _TOO_LARGE}):
        with pytest.raises(RemoteProtocolError, match="32 bits"):
            replace(message, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [Point(-1, 0), Point(0, -1), Point(m.MAX_ROUND + 1, 0), Point(0, m.MAX_STEP + 1)])
def test_a_point_that_no_run_comes_to_cannot_be_named(at: Point) -> None:
    for message in (*MESSAGES[:6], MESSAGES[9], *PARCELS[:4]):
        with pytest.raises(RemoteProtocolError, match="round"):
            replace(message, at=at)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "make",
    [
        lambda: m.LaneBegin(1, 0, AT, ()),
        lambda: m.LaneBegin(1, 0, AT, (*MEMBERS, MEMBERS[0])),
        lambda: m.LaneBack(1, 1, AT, 2, tuple(PeerId(f"p{n}") for n in range(65))),
        lambda: m.LaneBack(1, 1, AT, AT.step + 1, MEMBERS),
        lambda: m.LaneSquare(1, 0, AT, -1e-9),
        lambda: m.LaneStep(1, 0, AT, -math.inf),
        lambda: m.LaneEnd(1, 0, AT, 5, (), "whose?"),
        lambda: m.LaneEnd(1, 0, AT, 0, MEMBERS, "of what?"),
        lambda: m.LaneEnd(1, 0, AT, 1 << 54, MEMBERS, "too many"),
        lambda: m.LanePassed(1, 0, AT, 0, False, 0),
        lambda: m.LanePassed(1, 0, AT, 0, False, m.MAX_PASSED_BYTES + 1),
        lambda: m.LanePassed(1, 0, AT, _TOO_LARGE, False, 1),
        lambda: m.LaneCopy(1, 0, AT, 64, 1),
        lambda: m.LaneCopy(1, 0, AT, 0, m.MAX_COPY_BYTES + 1),
        lambda: m.LaneFetch(1, 0, AT, -1),
        lambda: m.LaneClaim(1, AT, 64, 4096, MEMBERS[0]),
        lambda: m.LaneClaim(1, AT, 0, 1 << 54, MEMBERS[0]),
    ],
)
def test_a_message_out_of_bounds_cannot_be_made(make: Callable[[], object]) -> None:
    with pytest.raises(RemoteProtocolError):
        make()


def test_a_gradient_that_is_not_finite_can_be_told_so_that_all_stages_leave_it_out() -> None:
    assert math.isnan(m.LaneSquare(1, 0, AT, math.nan).square)
    assert m.LaneStep(1, 0, AT, math.inf).whole_square == math.inf


def test_what_is_passed_on_names_the_pass_that_it_is_for() -> None:
    assert m.LanePassed(1, 0, AT, 7, True, 1).work == Pass(7, True)


def test_a_micro_batch_of_a_former_time_line_or_another_step_is_other_work() -> None:
    run_id = RunId(bytes(32))
    batch = m.lane_batch(run_id, 1, 2, AT, 0, inner_steps=5)
    assert batch.step == 4 * 5 + 3
    assert m.lane_batch(run_id, 1, 3, AT, 0, inner_steps=5).same_work(batch) == "another weights"
    assert m.lane_batch(run_id, 1, 2, Point(5, 3), 0, inner_steps=5).same_work(batch) == "another step"
    # what is drawn at random is drawn again when the lane has gone back
    assert m.lane_batch(run_id, 1, 3, AT, 0, inner_steps=5).seed(1) == batch.seed(1)
