"""Whose it is to give a stage's part of a lane that is no more: the keeper says so, and to one only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.ids import PeerId
from protocol.pipeline.lanes.ended_lanes import REMEMBERED, EndedLane, EndedLanes, claimed, has_ended
from protocol.pipeline.lanes.lane_machine import Dissolve
from protocol.pipeline.messages.lane_messages import LaneClaim
from protocol.pipeline.stage_machine import Point

FIRST, LOST, NEXT, HEIR, OTHER = (PeerId(name) for name in ("first", "lost", "next", "heir", "other"))
AT = Point(4, 3)
ENDED = EndedLane((FIRST, LOST, NEXT), Dissolve(AT, 4096, (FIRST, NEXT), (FIRST, NEXT, NEXT), "no spare"))
STATE = has_ended(EndedLanes(), 7, ENDED)
CLAIM = LaneClaim(7, Point(4, 4), 1, 4096, NEXT)


def test_the_part_of_a_lost_member_is_its_neighbours_to_give_and_goes_to_one_who_may_ask_again() -> None:
    done = claimed(STATE, HEIR, CLAIM)
    assert done.reason == ""
    assert claimed(done.state, HEIR, CLAIM).reason == ""
    again = claimed(done.state, OTHER, CLAIM)
    assert again.reason == "stage 1 of lane 7 once more: heir was given it"
    assert again.state == done.state


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lane": 8}, "lane 8, which did not end here"),
        ({"giver": FIRST}, "from first: it is next's to bring"),
        ({"tokens": 8192}, "8192 tokens of round 5 of lane 7, which ended with 4096 tokens of round 5"),
        ({"at": Point(5, 3)}, "4096 tokens of round 6 of lane 7, which ended with 4096 tokens of round 5"),
        ({"stage": 2}, "from next, which served it and brings it itself"),
        ({"stage": 0}, "it is first's to bring"),
        ({"stage": 9}, "it is nobody's"),
    ],
)
def test_anything_else_is_refused_and_nobody_was_given_it(changes: dict[str, object], reason: str) -> None:
    done = claimed(STATE, HEIR, replace(CLAIM, **changes))  # type: ignore[arg-type]
    assert reason in done.reason
    assert done.state == STATE


def test_of_a_lane_that_ended_without_weight_there_is_nothing_to_give() -> None:
    state = has_ended(EndedLanes(), 7, EndedLane(ENDED.members, Dissolve(AT, 0, (FIRST, NEXT), (), "lost")))
    assert "which ended with 0 tokens" in claimed(state, HEIR, CLAIM).reason


def test_only_the_newest_lanes_are_remembered_and_who_was_given_of_them() -> None:
    state = claimed(STATE, HEIR, CLAIM).state
    for number in range(100, 100 + REMEMBERED):
        state = has_ended(state, number, ENDED)
    assert len(state.ended) == REMEMBERED
    assert not state.given
    assert "did not end here" in claimed(state, HEIR, CLAIM).reason
