from __future__ import annotations

from collections import Counter

from protocol.ids import PeerId, RunId, UnitName
from protocol.rounds.lineage.evaluators import NUM_EVALUATORS, evaluator_order, is_turn_of

RUN, UNIT = RunId(b"r" * 32), UnitName("whole")
PEERS = tuple(PeerId(f"peer {number}") for number in range(8))


def test_the_order_is_that_of_run_unit_and_index_whatever_order_the_peers_are_named_in() -> None:
    order = evaluator_order(RUN, UNIT, 7, PEERS)
    assert set(order) == set(PEERS)
    assert order == evaluator_order(RUN, UNIT, 7, [*reversed(PEERS), PEERS[0]])
    others = [(RunId(b"s" * 32), UNIT, 7), (RUN, UnitName("expert-1"), 7), (RUN, UNIT, 8)]
    assert all(evaluator_order(*other, PEERS) != order for other in others)


def test_a_peer_that_is_left_out_changes_nothing_about_the_order_of_the_others() -> None:
    order = evaluator_order(RUN, UNIT, 7, PEERS)
    assert evaluator_order(RUN, UNIT, 7, order[1:]) == order[1:]


def test_everybody_has_its_turn() -> None:
    turns = Counter(evaluator_order(RUN, UNIT, index, PEERS)[0] for index in range(400))
    assert set(turns) == set(PEERS)
    assert max(turns.values()) < 4 * min(turns.values())


def test_the_first_of_the_order_measures_and_the_next_one_only_while_those_before_it_are_not_here() -> None:
    first, second, third = PEERS[:3]
    for here, whose in ({*PEERS}, first), ({second, third}, second), ({third}, third):
        for me in here:
            assert is_turn_of(me, (first, second, third), here.__contains__) is (me == whose)
    assert is_turn_of(third, (first, second, third), set().__contains__), "oneself is always here"
    assert not is_turn_of(PEERS[5], (first, second), set().__contains__), "and measures only if it is in the order"


def test_with_several_seats_the_first_that_are_here_measure() -> None:
    here = {PEERS[1], PEERS[3], PEERS[4], PEERS[6]}
    measure = [me for me in sorted(here) if is_turn_of(me, PEERS, here.__contains__, NUM_EVALUATORS)]
    assert measure == [PEERS[1], PEERS[3], PEERS[4]]
