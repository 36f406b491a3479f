"""Peers that see the same move one after another, when it is worth it and nothing changes meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from protocol.ids import PeerId
from protocol.pipeline.placement.placement import Placement, Server
from protocol.pipeline.placement.rebalancing import SETTLED_S, TURN_S, PlacementHistory, decide

NUM_STAGES = 3


def _placed(stages: dict[str, int], *, horizon_s: float = 3600.0, only: dict[str, set[int]] | None = None) -> Placement:
    """Peers of speed 1; a move takes 100 s. `only` are the stages that some have room for."""
    room = only or {}
    servers = tuple(
        Server(PeerId(peer), stage, 1.0, 10.0, frozenset(room.get(peer, range(NUM_STAGES))))
        for peer, stage in sorted(stages.items())
    )
    return Placement((1.0,) * NUM_STAGES, (800,) * NUM_STAGES, servers, 20.0, horizon_s)


LOPSIDED = {"a": 0, "b": 0, "c": 0, "d": 0, "e": 1, "f": 1, "g": 1, "h": 2, "i": 2}


def _settled(placement: Placement, me: str, now_s: float, *, is_needed: bool = False) -> int | None:
    """Its new stage, when nothing has changed since the time 0."""
    watch = decide(PlacementHistory(), placement, PeerId(me), 0.0, is_needed=is_needed).watch
    move = decide(watch, placement, PeerId(me), now_s, is_needed=is_needed).move
    return None if move is None else move.stage


def test_the_first_one_moves_when_all_have_been_where_they_are_for_a_while_and_nobody_else() -> None:
    placement = _placed(LOPSIDED)
    assert _settled(placement, "a", SETTLED_S - 1) is None
    movers = {me: _settled(placement, me, SETTLED_S + TURN_S / 2) for me in LOPSIDED}
    assert [(me, stage) for me, stage in movers.items() if stage is not None] == [("a", 2)]


def test_where_the_first_one_stays_the_next_one_has_its_turn() -> None:
    placement = _placed(LOPSIDED)
    assert _settled(placement, "b", SETTLED_S + TURN_S - 1) is None
    assert _settled(placement, "b", SETTLED_S + TURN_S) == 2
    assert _settled(placement, "c", SETTLED_S + 2 * TURN_S) == 2


def _with_line(placement: Placement, me: str, bytes_per_s: float) -> Placement:
    servers = (replace(s, download_bytes_per_s=bytes_per_s) if s.peer == me else s for s in placement.servers)
    return replace(placement, servers=tuple(servers))


def _turn(placement: Placement, me: str, bytes_per_s: float) -> int | None:
    """After how many others it goes with such a line, which it alone knows of; None where it stays."""
    measured, own = _with_line(placement, me, bytes_per_s), PeerId(me)
    watch = decide(PlacementHistory(), placement, own, 0.0, is_needed=False, as_measured=measured).watch
    for turn in range(2 * len(placement.servers)):
        at_s = SETTLED_S + turn * TURN_S
        if decide(watch, placement, own, at_s, is_needed=False, as_measured=measured).move is not None:
            return turn
    return None


def test_who_has_a_slow_line_stays_and_a_fast_one_goes_in_the_turn_that_all_see() -> None:
    placement = _placed(LOPSIDED)
    assert _turn(placement, "a", 0.1) is None  # 8000 s for what is won in an hour
    assert [_turn(placement, me, 1000.0) for me in "abcd"] == [_turn(placement, me, 10.0) for me in "abcd"]


def test_those_for_whom_it_is_worth_it_by_their_own_line_alone_go_after_all_others_and_no_two_at_once() -> None:
    short = _placed(LOPSIDED, horizon_s=199.0)  # nobody is seen to go
    turns = [_turn(short, me, 1000.0) for me in LOPSIDED]
    going = [turn for turn in turns if turn is not None]
    assert len(set(going)) == len(going) > 1
    assert _turn(short, "a", 10.0) is None


def test_who_goes_later_knows_how_many_may_go_before_it() -> None:
    placement = _placed(LOPSIDED)

    def num_before(me: str, *, is_needed: bool = False) -> int:
        watch = decide(PlacementHistory(), placement, PeerId(me), 0.0, is_needed=is_needed).watch
        return decide(watch, placement, PeerId(me), 1e6, is_needed=is_needed).num_before

    assert [num_before(me) for me in "abcd"] == [0, 1, 2, 3]
    assert num_before("a", is_needed=True) == 3


def test_who_is_needed_where_it_is_lets_all_others_go_before_it() -> None:
    placement = _placed(LOPSIDED)
    assert _settled(placement, "a", SETTLED_S + len(LOPSIDED) * TURN_S - 1, is_needed=True) is None
    assert _settled(placement, "a", SETTLED_S + len(LOPSIDED) * TURN_S, is_needed=True) == 2


def test_every_change_of_anybodys_place_begins_the_wait_anew() -> None:
    watch = decide(PlacementHistory(), _placed(LOPSIDED), PeerId("a"), 0.0, is_needed=False).watch
    changed = _placed({**LOPSIDED, "z": 1})
    later = decide(watch, changed, PeerId("a"), SETTLED_S, is_needed=False)
    assert later.move is None
    assert later.reason == "the peers' stages have just changed"
    again = decide(later.watch, changed, PeerId("a"), SETTLED_S + 1.0, is_needed=False)
    assert again.reason.startswith(f"to stage 2 in {SETTLED_S - 1:.0f} s, if nobody else moves: ")


@pytest.mark.parametrize(
    ("stages", "horizon_s"),
    [
        ({"a": 0, "b": 0, "c": 1, "d": 1, "e": 2, "f": 2}, 3600.0),  # equal everywhere
        ({"a": 0, "b": 0, "c": 0, "d": 1, "e": 1, "f": 2, "g": 2}, 3600.0),  # nothing is won
        ({"a": 0, "b": 0, "c": 1, "d": 1, "e": 2}, 3600.0),  # one of two replicas would be left
        (LOPSIDED, 199.0),  # half as fast again for 199 s, and moving takes 100 s
    ],
)
def test_nobody_moves_where_it_is_not_worth_it(stages: dict[str, int], horizon_s: float) -> None:
    placement = _placed(stages, horizon_s=horizon_s)
    assert [_settled(placement, me, 1e6) for me in stages] == [None] * len(stages)


def test_who_has_no_room_for_the_stage_stays_and_the_next_one_goes() -> None:
    assert _settled(_placed(LOPSIDED, only={"a": {0, 1}}), "a", 1e6) is None
    assert _settled(_placed(LOPSIDED), "b", SETTLED_S + TURN_S) == 2


@pytest.mark.parametrize("seed", range(6))
def test_peers_that_all_decide_by_themselves_come_to_rest_with_stages_alike_and_nobody_moves_twice(seed: int) -> None:
    draw = random.Random(seed)
    places = {f"p{number}": draw.choice([0, 0, 0, 1, 1, 2]) for number in range(draw.randint(6, 14))}
    watches = dict.fromkeys(places, PlacementHistory())
    moved, now_s = Counter[str](), 0.0
    away: dict[str, tuple[float, int]] = {}
    while now_s < 3600.0:
        now_s += 10.0
        for peer, (back_s, stage) in list(away.items()):
            if back_s <= now_s:
                places[peer] = stage
                watches[peer] = PlacementHistory()
                del away[peer]
        for peer in sorted(places):
            looked = decide(watches[peer], _placed(places), PeerId(peer), now_s, is_needed=draw.random() < 0.3)
            watches[peer] = looked.watch
            if looked.move is not None:
                moved[peer] += 1
                away[peer] = (now_s + draw.uniform(5.0, 20.0), looked.move.stage)
                del places[peer]
    counts = Counter(places.values())
    assert not away
    assert max(moved.values(), default=0) <= 1
    assert min(counts[stage] for stage in range(NUM_STAGES)) >= len(places) // NUM_STAGES
