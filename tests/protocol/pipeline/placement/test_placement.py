"""Joiners go where the run lacks most; replicas move when it pays, and leave no stage alone. Petals' rule as it is published."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from protocol.errors import LocalProtocolError
from protocol.ids import PeerId
from protocol.pipeline.placement.placement import Placement, Server, next_move, stage_for_joiner
from tests.benchmarks.placement_trace import Simulation, Trace, nobody_moves, ours, petals, petals_choice

ALL = frozenset({0, 1, 2})


def _placed(*stages: int, horizon_s: float = 600.0, costs: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Placement:
    """Servers of speed 1 at these stages; a move takes 80 + 20 s."""
    servers = tuple(Server(PeerId(f"p{place}"), stage, 1.0, 10.0, ALL) for place, stage in enumerate(stages))
    return Placement(costs, (800, 800, 800), servers, 20.0, horizon_s)


def test_a_joiner_takes_a_stage_with_nobody_then_one_with_a_single_replica_then_the_slowest() -> None:
    assert stage_for_joiner(_placed(0, 0, 2), ALL) == 1
    assert stage_for_joiner(_placed(0, 0, 1, 2, 2, costs=(1.0, 0.1, 1.0)), ALL) == 1
    assert stage_for_joiner(_placed(0, 0, 0, 1, 1, 1, 2, 2), ALL) == 2
    assert stage_for_joiner(_placed(0, 0, 1, 1, 2, 2, costs=(1.0, 3.0, 1.0)), ALL) == 1


def test_a_joiner_takes_only_what_it_has_room_for() -> None:
    assert stage_for_joiner(_placed(0, 0, 2), {0, 2}) == 2
    with pytest.raises(LocalProtocolError, match="room for no stage"):
        stage_for_joiner(_placed(0), ())


def test_a_replica_moves_to_the_slowest_stage_when_that_wins_more_than_moving_takes() -> None:
    move = next_move(_placed(0, 0, 0, 0, 1, 1, 1, 2, 2))
    assert move is not None
    assert (move.stage, move.takes_s) == (2, 100.0)
    assert move.reason == "300 s are won in 600 s, and moving takes 100 s"
    assert move.peer in ("p0", "p1", "p2", "p3")
    assert next_move(_placed(0, 0, 0, 0, 1, 1, 1, 2, 2, horizon_s=199.0)) is None


@pytest.mark.parametrize("stages", [(0, 0, 1, 1, 2, 2), (0, 0, 0, 1, 1, 2, 2), (0, 0, 1, 1, 2), (0, 1, 2)])
def test_nobody_moves_for_an_equal_score_or_leaves_a_stage_with_fewer_than_two(stages: tuple[int, ...]) -> None:
    assert next_move(_placed(*stages)) is None


def test_a_stage_with_fewer_than_two_replicas_is_helped_by_one_that_can_spare_it_though_nothing_is_won() -> None:
    move = next_move(_placed(0, 0, 0, 1, 2, 2, costs=(1.0, 0.1, 1.0)))
    assert move is not None
    assert move.stage == 1
    assert move.reason == "stage 1 has 1 replicas"


def test_a_stage_with_nobody_is_taken_by_one_of_two_which_cannot_be_avoided() -> None:
    move = next_move(_placed(0, 0, 2, 2))
    assert move is not None
    assert move.stage == 1


def test_who_is_moving_already_or_has_no_room_stays() -> None:
    placed = _placed(0, 0, 0, 0, 1, 1, 1, 2, 2)
    stuck = tuple(replace(server, is_moving=server.stage == 0) for server in placed.servers)
    assert next_move(replace(placed, servers=stuck)) is None
    small = tuple(replace(server, fits=frozenset({0, 1})) for server in placed.servers)
    assert next_move(replace(placed, servers=small)) is None


def test_of_two_that_gain_as_much_the_one_with_the_faster_line_moves() -> None:
    placed = _placed(0, 0, 0, 0, 1, 1, 1, 2, 2)
    faster = tuple(
        replace(server, download_bytes_per_s=40.0 if server.peer == "p2" else 10.0) for server in placed.servers
    )
    move = next_move(replace(placed, servers=faster))
    assert move is not None
    assert (move.peer, move.takes_s) == ("p2", 40.0)


def test_numbers_that_are_no_placement_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="one of each a stage"):
        replace(_placed(0), costs=(1.0,))


# --- Petals' rule, before anything is compared with it ---


def _choice(*stages: int, server: int = 0) -> int | None:
    return petals_choice(dict(enumerate(stages)), server, 3, random.Random(1))


def test_petals_moves_below_three_quarters_of_what_could_be_and_stays_above() -> None:
    assert _choice(0, 0, 0, 0, 1, 1, 1, 2, 2) == 2  # 2 of 3
    assert _choice(*[0] * 5, *[1] * 4, *[2] * 3) is None  # 3 of 4


def test_petals_never_leaves_a_stage_to_nobody() -> None:
    assert _choice(0, 1, 1, 1, 2, 2, 2) is None
    assert _choice(0, 0, 1, 1, server=0) is not None  # a stage with nobody yet is another matter


@pytest.mark.parametrize("rule", [nobody_moves, petals, ours])
def test_a_trace_gives_the_same_outcome_each_time_and_never_more_than_is_possible(rule: object) -> None:
    trace = Trace(num_servers=16, num_stages=4, up_s=7200, down_s=3600, hours=4, seed=1)
    first, again = Simulation(trace, rule).run(), Simulation(trace, rule).run()  # type: ignore[arg-type]
    assert first == again
    assert 0.5 < first.share <= 1.0
    assert (first.moves == 0) == (rule is nobody_moves)
