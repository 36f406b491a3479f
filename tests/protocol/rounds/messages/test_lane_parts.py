from __future__ import annotations

import random

import pytest

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.rounds.messages.lane_parts import MAX_PARTS, LanePart, brought_twice, require_once, require_parts

A, B, C = (PeerId(name) for name in ("alice", "bob", "carol"))


def _parts(*lanes: int, round_: int = 3) -> tuple[LanePart, ...]:
    return tuple(LanePart(lane, round_, 100) for lane in lanes)


def test_of_who_lost_its_seat_and_who_took_it_one_is_counted_and_the_other_told_why() -> None:
    assert brought_twice({B: _parts(7), A: _parts(7), C: _parts(8)}) == {B: "its part of lane 7 is brought by alice"}


def test_who_brings_more_lanes_is_counted_so_that_none_of_them_is_lost_with_another() -> None:
    assert set(brought_twice({A: _parts(7), B: _parts(7, 8)})) == {A}


def test_the_same_lane_in_two_rounds_and_contributions_without_lanes_stand_beside_one_another() -> None:
    assert brought_twice({A: _parts(7), B: _parts(7, round_=4), C: ()}) == {}
    assert brought_twice({A: (), B: ()}) == {}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_brought_every_lane_is_counted_once_and_nobody_is_left_out_without_need(seed: int) -> None:
    chance = random.Random(seed)
    brought = {
        PeerId(f"peer{number}"): tuple(LanePart(lane, chance.randrange(2), 5) for lane in chance.sample(range(6), 2))
        for number in range(chance.randint(1, 8))
    }
    out = brought_twice(brought)
    counted = [parts for peer, parts in brought.items() if peer not in out]
    require_once(counted)
    for peer in out:
        with pytest.raises(RemoteProtocolError, match="a lane twice"):
            require_once([*counted, brought[peer]])
    assert brought_twice(dict(reversed(brought.items()))) == out, "in whatever order they came"


def test_parts_that_do_not_make_up_the_contribution_are_refused() -> None:
    require_parts((), 77)
    require_parts(_parts(7, 8), 200)
    for parts, tokens, words in (
        (_parts(7, 8), 300, "of 200 tokens"),
        (_parts(7, 7), 200, "a lane twice"),
        (_parts(*range(MAX_PARTS + 1)), 6500, "at most"),
    ):
        with pytest.raises(RemoteProtocolError, match=words):
            require_parts(parts, tokens)
    for lane, round_, tokens in ((-1, 0, 0), (1 << 32, 0, 0), (0, 1 << 32, 0), (0, 0, -1)):
        with pytest.raises(RemoteProtocolError):
            LanePart(lane, round_, tokens)
