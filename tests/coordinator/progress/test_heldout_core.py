from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from coordinator.ledger.ledger import LossPoint
from coordinator.progress.heldout_core import (
    MAX_WAITING,
    STAND_IN_AFTER_COMMITS,
    WAITS_FOR_COMMITS,
    Lineage,
    Measured,
    Settled,
    Turns,
    expert_kind,
    heard_of,
    place_of,
    settled,
    settled_by_many,
)
from protocol.host.reports import HeldoutResult
from protocol.ids import CommitId, PeerId, RunId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.evaluators import evaluator_order
from protocol.tensors.expert_schema import expert_unit

RUN, TRUNK = RunId(b"r" * 32), UnitName("trunk")
PEERS = (PeerId("a"), PeerId("b"), PeerId("c"))
LINK = ChainLink(TRUNK, CommitId(b"c" * 32), 7, PEERS, 700, 100)
SIBLING = ChainLink(TRUNK, CommitId(b"d" * 32), 7, PEERS, 690, 100)
FIRST, SECOND, THIRD = evaluator_order(RUN, TRUNK, 7, PEERS)
STRANGER = PeerId("stranger")
SHARES = (0.75, 0.25)
WHOLE_RUN = Turns(RUN)
OF_EXPERTS = Turns(RUN, (PEERS, PEERS))


def _result(*of_experts: tuple[int, float], nats: float = 2.0, prose_nats: float | None = None) -> HeldoutResult:
    return HeldoutResult(LINK.commit, 99, 99, nats, prose_nats, of_experts)


def _heard(peer: PeerId, result: HeldoutResult | None = None, turns: Turns = WHOLE_RUN) -> tuple[Measured, ...]:
    return heard_of(peer, result or _result(), LINK, turns).values


def _now(
    values: Sequence[Measured],
    shown: Sequence[LossPoint] = (),
    *,
    head_index: int = 7,
    live: Collection[PeerId] = PEERS,
    shares: Sequence[float] = (),
) -> Settled:
    lineage = Lineage({LINK.commit}, head_index, live)
    return settled(values, {place_of(point): point for point in shown}, lineage, shares)


def _reported(points: Sequence[LossPoint]) -> list[tuple[str, float, PeerId]]:
    assert {(point.index, point.tokens) for point in points} <= {(7, 700)}, "of the commit, not of the claim"
    return [(point.kind, point.nats, point.peer) for point in points]


def test_the_loss_and_the_prose_of_a_commit_are_shown_from_the_peer_whose_turn_it_is() -> None:
    found = _now(_heard(FIRST, _result(prose_nats=3.0)))
    assert _reported(found.added) == [("heldout", 2.0, FIRST), ("prose", 3.0, FIRST)]
    assert (found.replaced, found.waiting) == ((), ())


def test_a_value_of_a_stand_in_waits_until_two_further_commits_came_without_one_of_those_before_it() -> None:
    waiting = _now(_heard(SECOND)).waiting
    assert [value.peer for value in waiting] == [SECOND]
    early = _now(waiting, head_index=7 + STAND_IN_AFTER_COMMITS - 1)
    assert (early.added, early.waiting) == ((), waiting)
    assert _reported(_now(waiting, head_index=7 + STAND_IN_AFTER_COMMITS).added) == [("heldout", 2.0, SECOND)]


def test_a_value_of_a_stand_in_is_shown_at_once_when_those_before_it_are_not_live() -> None:
    assert _reported(_now(_heard(SECOND), live=(SECOND, THIRD)).added) == [("heldout", 2.0, SECOND)]
    assert _now(_heard(THIRD), live=(SECOND, THIRD)).added == (), "the second of the order is live"
    assert _reported(_now(_heard(THIRD), live=(THIRD,)).added) == [("heldout", 2.0, THIRD)]


@pytest.mark.parametrize("head_index", [7, 50])
def test_a_value_of_a_later_peer_never_takes_the_place_of_an_earlier_ones(head_index: int) -> None:
    shown = _now(_heard(FIRST)).added
    for peer in PEERS:
        again = _now(_heard(peer, _result(nats=0.1)), shown, head_index=head_index)
        assert (again.added, again.replaced, again.waiting) == ((), (), ())


def test_a_late_value_of_the_evaluator_takes_the_place_of_a_stand_ins() -> None:
    shown = _now(_heard(THIRD), live=()).added
    found = _now(_heard(FIRST, _result(nats=1.0)), shown, head_index=20)
    assert _reported(found.added) == [("heldout", 1.0, FIRST)]
    assert found.replaced == shown
    together = _now((*_heard(THIRD), *_heard(FIRST, _result(nats=1.0))), head_index=20)
    assert _reported(together.added) == [("heldout", 1.0, FIRST)]
    assert together.replaced == ()


def test_a_peer_that_is_not_in_the_order_is_refused_by_name() -> None:
    heard = heard_of(STRANGER, _result(prose_nats=3.0), LINK, WHOLE_RUN)
    assert heard.values == ()
    assert "ranger measured commit 7" in heard.refused
    assert not heard_of(THIRD, _result(), LINK, WHOLE_RUN).refused


def test_a_commit_that_is_not_followed_has_no_point_until_it_is_and_is_forgotten_after_a_while() -> None:
    values = heard_of(FIRST, HeldoutResult(SIBLING.commit, 7, 690, 2.0), SIBLING, WHOLE_RUN).values
    assert (_now(values).added, _now(values).waiting) == ((), values)
    late = _now(values, head_index=7 + WAITS_FOR_COMMITS)
    assert (late.added, late.waiting) == ((), ())


def test_a_peer_that_sends_too_much_loses_its_own_oldest_values_and_nobody_elses() -> None:
    links = [ChainLink(TRUNK, CommitId(bytes([n]) * 32), 100 + n, PEERS, 9000 + n, 100) for n in range(MAX_WAITING + 9)]
    flood = [value for link in links for value in heard_of(FIRST, _result(), link, WHOLE_RUN).values]
    kept = _now([*_heard(SECOND), *flood]).waiting
    assert [value.link.index for value in kept if value.peer == FIRST] == [link.index for link in links[9:]]
    assert [value.peer for value in kept].count(SECOND) == 1


# --- experts --------------------------------------------------------------------------------------------------------------------


def _order(expert: int, peers: Collection[PeerId] = PEERS) -> tuple[PeerId, ...]:
    return evaluator_order(RUN, expert_unit(expert), 7, peers)


def test_each_expert_has_a_curve_and_the_whole_is_their_mean_by_their_share_once_all_are_there() -> None:
    first, second = _order(0)[0], _order(1)[0]
    one = _now(_heard(first, _result((0, 1.0)), OF_EXPERTS), shares=SHARES).added
    assert _reported(one) == [(expert_kind(0), 1.0, first)]
    both = _now(_heard(second, _result((1, 3.0)), OF_EXPERTS), one, shares=SHARES).added
    assert _reported(both) == [(expert_kind(1), 3.0, second), ("heldout", pytest.approx(1.5), second)]


def test_an_expert_is_taken_from_its_holders_in_their_order_among_the_spines_roster() -> None:
    holders = (*_order(0)[1:], STRANGER)
    turns = Turns(RUN, (holders, PEERS))
    first, second = _order(0, holders[:2])
    assert _reported(_now(_heard(first, _result((0, 1.0)), turns), shares=SHARES).added) == [
        (expert_kind(0), 1.0, first)
    ]
    assert _now(_heard(second, _result((0, 1.0)), turns), shares=SHARES).added == ()
    for outside in (_order(0)[0], STRANGER):
        assert heard_of(outside, _result((0, 1.0)), LINK, turns).refused, "no holder, or no voter of the spine"


def test_a_whole_is_made_anew_when_an_experts_value_is_replaced() -> None:
    first, _, last = _order(0)
    before = _now(_heard(last, _result((0, 9.0), (1, 3.0)), OF_EXPERTS), live=(), shares=SHARES).added
    found = _now(_heard(first, _result((0, 1.0)), OF_EXPERTS), before, shares=SHARES)
    assert _reported(found.added) == [(expert_kind(0), 1.0, first), ("heldout", pytest.approx(1.5), first)]
    assert {point.kind for point in found.replaced} == {expert_kind(0), "heldout"}


def test_in_a_run_of_experts_a_loss_without_experts_and_one_of_an_expert_that_it_has_not_count_for_nothing() -> None:
    assert _heard(FIRST, _result(), OF_EXPERTS) == ()
    assert [value.kind for value in _heard(FIRST, _result((0, 1.0), (2, 9.0)), OF_EXPERTS)] == [expert_kind(0)]


def test_in_a_pipeline_run_the_replicas_of_the_last_stage_take_turns() -> None:
    stage = UnitName("stage-3")
    turns = Turns(RUN, last_stage=stage, stage_holders=(STRANGER, PEERS[0]))
    first, second = evaluator_order(RUN, stage, 7, (STRANGER, PEERS[0]))
    assert [value.ahead for peer in (first, second) for value in _heard(peer, turns=turns)] == [(), (first,)]
    assert heard_of(PEERS[1], _result(), LINK, turns).refused


# --- several evaluators ---------------------------------------------------------------------------------------------------------

MANY = tuple(PeerId(f"peer{place}") for place in range(5))
MANY_LINK = ChainLink(TRUNK, CommitId(b"c" * 32), 7, MANY, 700, 100)
ORDER = evaluator_order(RUN, TRUNK, 7, MANY)


def _said(place: int, nats: float) -> Measured:
    return heard_of(ORDER[place], _result(nats=nats), MANY_LINK, WHOLE_RUN).values[0]


def _of_many(
    values: Sequence[Measured],
    shown: Sequence[LossPoint] = (),
    live: Collection[PeerId] = MANY,
    head_index: int = 7,
    followed: CommitId = MANY_LINK.commit,
) -> Settled:
    lineage = Lineage({followed}, head_index, live)
    return settled_by_many(values, {place_of(point): point for point in shown}, lineage)


@pytest.mark.parametrize(
    ("nats", "expected"),
    [((2.0,), 2.0), ((9.0, 2.0), 2.0), ((2.0, 9.0, 3.0), 3.0), ((900.0, 2.0, 2.1), 2.1), ((0.0, 2.0, 2.1), 2.0)],
)
def test_of_several_evaluators_the_lower_median_is_shown_so_one_of_three_moves_nothing(
    nats: tuple[float, ...], expected: float
) -> None:
    now = _of_many([_said(place, value) for place, value in enumerate(nats)])
    assert [(point.nats, point.peer) for point in now.added] == [(expected, ORDER[0])]
    assert len(now.waiting) == len(nats), "they stay for those that come later"


def test_a_fourth_evaluator_counts_only_while_one_before_it_is_away() -> None:
    values = [_said(0, 2.0), _said(1, 2.0), _said(3, 9.0), _said(4, 9.0)]
    assert _of_many(values).added == (_point(2.0, 2),)
    away = [peer for peer in MANY if peer != ORDER[2]]
    assert _of_many(values, live=away).added == (_point(2.0, 3),)


def _point(nats: float, voices: int = 1) -> LossPoint:
    return LossPoint("heldout", 7, 700, nats, ORDER[0], voices)


def test_a_median_of_an_earlier_process_of_the_host_stands_until_as_many_evaluators_tell_it_again() -> None:
    stands = [_point(2.0, 3)]
    first = _of_many([_said(0, 9.0)], stands)
    assert (first.added, first.replaced, len(first.waiting)) == ((), (), 1)
    assert _of_many((*first.waiting, _said(1, 9.0), _said(2, 9.0)), stands).added == (_point(9.0, 3),)


def test_a_point_moves_as_others_come_and_is_written_once() -> None:
    first = _of_many([_said(0, 9.0)])
    assert first.added == (_point(9.0),)
    again = _of_many(first.waiting, first.added)
    assert (again.added, again.replaced) == ((), ())
    later = _of_many((*again.waiting, _said(1, 2.0)), first.added)
    assert (later.added, later.replaced) == ((_point(2.0, 2),), first.added)


def test_an_evaluator_has_one_voice_its_last_and_another_lineage_or_an_old_commit_has_none() -> None:
    twice = _of_many([_said(0, 9.0), _said(0, 2.0)])
    assert (twice.added, len(twice.waiting)) == ((_point(2.0),), 1)
    beside = _of_many([_said(0, 2.0)], followed=CommitId(b"e" * 32))
    assert (beside.added, len(beside.waiting)) == ((), 1)
    old = _of_many([_said(0, 2.0)], followed=CommitId(b"e" * 32), head_index=7 + WAITS_FOR_COMMITS)
    assert old.waiting == ()
