from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from protocol.ids import PeerId
from protocol.rounds.events import PeerLost, RoundTicked
from protocol.rounds.failure_probes import (
    FEW,
    FULL_MESH,
    MOST_TOLD,
    NUM_BESIDE,
    REPORT_VALID_S,
    TOLD_FOR_S,
    do_ping,
    do_watch,
    found_silent,
    is_ours_to_ask,
    missed_by_others,
    missed_while_idle,
)
from protocol.rounds.liveness import MOST_ASKED, ticked, with_view
from protocol.rounds.messages.messages import Proposal, ResultReady, SliceSpec
from protocol.rounds.orders import Action, DropMember, SendHeartbeat
from protocol.rounds.queries import (
    LEAST_COMPARED,
    MOST_STRAIN_S,
    MOST_THIN_S,
    THIN_SHARE,
    idle_patience_s,
    is_alive,
    is_suspected,
    silent_members,
    strain_s,
)
from protocol.rounds.schedule.liveness_timing import SUSPECT_AFTER_S
from protocol.rounds.telling import NUM_TOLD_OF_SILENCE
from tests.protocol.rounds.round_table import Seat, Table, acquaint, heartbeat_of

LARGE = 2 * FULL_MESH


def _exchanging(num_peers: int) -> Table:
    """An exchange of so many goes on: no result comes."""
    table = Table(num_peers, max_members=64)
    acquaint(table)
    table.drops = lambda sender, to, message: isinstance(message, ResultReady)
    table.run_until(lambda: all(seat.state.open.exchange is not None for seat in table.live()), 10.0)
    return table


def _proposal(seat: Seat) -> Proposal:
    assert seat.state.open.proposal is not None
    return seat.state.open.proposal


def _watchers(table: Table, seat: Seat) -> list[Seat]:
    return [other for other in table.others(seat) if do_watch(other.state, other.peer, seat.peer)]


def _mere(table: Table) -> Seat:
    """Somebody who does not lead."""
    return table.others(table.opener())[3]


# --- who pings whom -----------------------------------------------------------------------------------------------------------


def test_in_a_round_of_a_few_everybody_pings_everybody() -> None:
    table = _exchanging(FULL_MESH)
    assert all(do_ping(one.state, one.peer, other.peer) for one in table.live() for other in table.others(one))


def test_in_a_large_round_each_member_has_the_leader_and_two_on_each_side_who_look_after_it() -> None:
    table = _exchanging(LARGE)
    opener = table.opener()
    assert len(_watchers(table, opener)) == LARGE - 1
    for seat in table.others(opener):
        beside = [other for other in _watchers(table, seat) if other is not opener]
        assert 2 * NUM_BESIDE - 1 <= len(beside) <= 2 * NUM_BESIDE, "the leader may be one of those beside it"
        assert all(do_watch(seat.state, seat.peer, other.peer) for other in beside), "both look after each other"


def test_who_reduces_without_being_a_member_is_looked_after_by_the_leader_and_four_members() -> None:
    table = _exchanging(LARGE)
    opener = table.opener()
    proposal = _proposal(opener)
    lent = tuple(PeerId(f"lender{number}") for number in range(2))
    parts = (SliceSpec(0, 1, lent[0]), SliceSpec(1, 2, lent[1]))
    opened = replace(opener.state.open, proposal=replace(proposal, slices=parts))
    mend = replace(opener.state, open=opened)
    for lender in lent:
        watchers = [member.peer for member in proposal.members if do_watch(mend, member.peer, lender)]
        assert opener.peer in watchers
        assert 2 * NUM_BESIDE <= len(watchers) <= 2 * NUM_BESIDE + 1
    assert not do_watch(mend, *lent)
    for one in proposal.members:
        for other in proposal.members:
            assert do_watch(mend, one.peer, other.peer) == do_watch(opener.state, one.peer, other.peer)


@pytest.mark.parametrize("num_peers", [LARGE, 2 * LARGE])
def test_what_a_member_of_a_large_exchange_says_a_second_does_not_grow_with_the_members(num_peers: int) -> None:
    table = _exchanging(num_peers)
    before = {seat.peer: len(seat.ordered(SendHeartbeat)) for seat in table.live()}
    seconds = 4.0
    table.run_for(seconds)
    reported = Counter[PeerId]()
    for seat in table.live():
        for order in seat.ordered(SendHeartbeat)[before[seat.peer] :]:
            assert isinstance(order, SendHeartbeat)
            reported[seat.peer] += len(order.to)
    # twice a second those who come next, and three in turn each second; the leader all
    assert reported.pop(table.opener().peer) <= seconds * (2 * (num_peers - 1) + 3)
    assert max(reported.values()) <= seconds * (2 * NUM_BESIDE + 3)


@pytest.mark.parametrize("num_peers", [3, 4, 7, FULL_MESH, LARGE])
def test_of_two_who_look_after_each_other_one_asks_and_of_the_leader_and_a_member_the_leader(num_peers: int) -> None:
    table = _exchanging(num_peers)
    leader = table.opener()
    for seat in table.live():
        watched = _watchers(table, seat)
        asked = [other for other in watched if is_ours_to_ask(seat.state, other.peer)]
        assert not any(is_ours_to_ask(other.state, seat.peer) for other in asked)
        assert all(is_ours_to_ask(other.state, seat.peer) for other in watched if other not in asked)
        assert leader not in asked
        assert (
            len(asked) == len(watched)
            if seat is leader
            else len(asked) <= NUM_BESIDE + (FULL_MESH // 2 if num_peers <= FULL_MESH else 0)
        )


def test_who_is_asked_asks_nobody_unless_it_is_not_asked_in_time_or_misses_somebody() -> None:
    table = _exchanging(4)
    leader = table.opener()
    seat = table.others(leader)[0]
    others = table.others(seat)
    ours = {other.peer for other in others if is_ours_to_ask(seat.state, other.peer)}
    table.perform = lambda at, action: None  # type: ignore[method-assign,assignment]

    def pinged(*heard: Seat) -> set[PeerId]:
        for other in heard:
            seat.hear(other, heartbeat_of(other))
        table.now_s += seat.state.config.ping_s
        orders = [order for order in seat.feed(RoundTicked()) if isinstance(order, SendHeartbeat)]
        return set().union(*(order.to for order in orders))

    heard = [other for other in others if other is not leader]
    assert [pinged(*others) for _ in range(3)] == [ours] * 3
    assert pinged(*heard) == {*ours, leader.peer}, "it did not ask for two turns"
    said = set[PeerId]()
    while silent_members(seat.state, table.now_s) != (leader.peer,):
        assert silent_members(seat.state, table.now_s) == ()
        said = pinged(*heard)
    assert said == {other.peer for other in others}, "they are to hear whom it misses"


# --- who is found dead --------------------------------------------------------------------------------------------------------


def test_a_frozen_member_of_a_large_exchange_is_dropped_a_second_after_a_suspicion_by_the_leader_and_after_another_by_all() -> (
    None
):
    table = _exchanging(LARGE)
    opener, frozen = table.opener(), _mere(table)
    others = table.others(frozen)
    table.run_for(5.0)
    table.freeze(frozen)
    dropped = DropMember(frozen.peer, "silent")
    table.run_for(SUSPECT_AFTER_S)
    assert not any(dropped in seat.orders for seat in others)
    table.run_for(1.0)
    assert all(dropped in seat.orders for seat in (opener, *(_watchers(table, frozen))) if seat is not frozen)
    table.run_for(SUSPECT_AFTER_S)
    assert all(dropped in seat.orders for seat in others)


def test_a_killed_member_of_a_large_exchange_is_dropped_at_once_by_those_who_ask_it_and_by_all_in_three_seconds() -> (
    None
):
    table = _exchanging(LARGE)
    dead = _mere(table)
    table.run_for(3.0)
    watchers = _watchers(table, dead)
    table.kill(dead)
    dropped = DropMember(dead.peer, "lost")
    table.run_for(1.5)
    assert all(dropped in seat.orders for seat in watchers)
    table.run_for(1.5)
    assert all(dropped in seat.orders for seat in table.live())


def test_a_leader_that_fell_silent_in_a_large_exchange_is_suspected_by_all_a_second_after_a_suspicion() -> None:
    table = _exchanging(LARGE)
    opener = table.opener()
    others = table.others(opener)
    table.freeze(opener)
    table.run_for(SUSPECT_AFTER_S + 1.0)
    assert all(DropMember(opener.peer, "silent") in seat.orders for seat in others)


def test_whom_all_its_watchers_but_the_leader_lost_is_found_by_everybody() -> None:
    table = _exchanging(LARGE)
    opener, frozen = table.opener(), _mere(table)
    gone = [frozen, *(seat for seat in _watchers(table, frozen) if seat is not opener)]
    table.run_for(1.0)
    for seat in gone:
        table.freeze(seat)
    left = table.others(*gone)
    table.run_for(2 * SUSPECT_AFTER_S + 3.0)
    assert all(DropMember(seat.peer, "silent") in other.orders for seat in gone for other in left)


def test_whom_three_cannot_reach_nobody_else_suspects_but_all_ask_it_until_it_is_missed_no_more() -> None:
    table = _exchanging(LARGE)
    opener, cut = table.opener(), _mere(table)
    beside = [seat for seat in _watchers(table, cut) if seat is not opener][:3]
    links = {(cut.peer, seat.peer) for seat in beside}
    table.cuts = links | {(b, a) for a, b in links}
    table.run_for(SUSPECT_AFTER_S + 2.0)
    far = [seat for seat in table.others(cut) if seat not in _watchers(table, cut)]
    for seat in far:
        assert cut.peer in missed_by_others(seat.state, table.now_s)
        assert do_ping(seat.state, seat.peer, cut.peer)
        assert not is_suspected(seat.state, cut.peer, table.now_s)
    assert not is_suspected(opener.state, cut.peer, table.now_s)
    assert all(is_suspected(seat.state, cut.peer, table.now_s) for seat in beside)
    table.heal()
    table.run_for(SUSPECT_AFTER_S + 1.5)
    for seat in far:
        assert not do_ping(seat.state, seat.peer, cut.peer)
        assert not any(map(partial(is_suspected, seat.state, now_s=table.now_s), seat.state.peers))


# --- where nobody keeps up ----------------------------------------------------------------------------------------------------


def test_where_nearly_all_are_late_nobody_is_suspected_or_missed_until_it_is_much_later_than_they() -> None:
    """32 members on two cores waited for the processor: pings took 6 s, everybody missed everybody, and slices went round."""
    table = _exchanging(LARGE)
    table.drops = lambda sender, to, message: True
    table.run_for(5.0)
    for seat in table.live():
        others = [other.peer for other in table.others(seat)]
        assert not any(is_suspected(seat.state, peer, table.now_s) for peer in others)
        assert silent_members(seat.state, table.now_s) == ()


def test_a_quarter_that_answers_in_time_makes_suspects_of_all_others_who_do_not() -> None:
    table = _exchanging(LARGE)
    opener = table.opener()
    heard = {seat.peer for seat in table.others(opener)[: LARGE // 4]}
    here = {opener.peer, *heard}
    table.drops = lambda sender, to, message: isinstance(message, ResultReady) or not {sender, to} <= here
    table.run_for(SUSPECT_AFTER_S + 2.0)
    suspects = {seat.peer for seat in table.others(opener) if is_suspected(opener.state, seat.peer, table.now_s)}
    assert suspects == {seat.peer for seat in table.others(opener)} - heard


def test_of_a_few_all_that_fell_silent_are_suspected_in_time() -> None:
    table = _exchanging(LEAST_COMPARED)
    opener = table.opener()
    for seat in table.others(opener):
        table.freeze(seat)
    table.run_for(SUSPECT_AFTER_S + 0.5)
    assert all(is_suspected(opener.state, seat.peer, table.now_s) for seat in table.others(opener))


@pytest.mark.parametrize("of_whom", ["ours", "theirs"])
@pytest.mark.parametrize(
    ("upload_s", "silent_s"),
    [
        (0.0, SUSPECT_AFTER_S),
        (SUSPECT_AFTER_S / THIN_SHARE, SUSPECT_AFTER_S),
        (100.0, THIN_SHARE * 100.0),
        (200.0, THIN_SHARE * 200.0),
        (5000.0, SUSPECT_AFTER_S + MOST_THIN_S),
    ],
)
def test_who_fell_silent_is_suspected_later_where_a_thin_line_makes_the_round_long(
    of_whom: str, upload_s: float, silent_s: float
) -> None:
    table = _exchanging(3)
    opener = table.opener()
    other, *_ = table.others(opener)
    view = opener.state.peers[other.peer]
    if of_whom == "ours":
        state = replace(opener.state, exchange_s=upload_s)
    else:
        state = with_view(opener.state, replace(view, exchange_s=upload_s))
    since_s = max(view.heard_at_s, state.open.proposal_at_s)
    assert not is_suspected(state, other.peer, since_s + silent_s)
    assert is_suspected(state, other.peer, since_s + silent_s + 0.01)


def test_patience_with_those_who_are_late_has_an_end() -> None:
    table = _exchanging(LARGE)
    opener = table.opener()
    assert strain_s(opener.state, table.now_s) == 0.0
    table.drops = lambda sender, to, message: True
    until_s = opener.state.config.suspect_after_s + MOST_STRAIN_S
    later_s = opener.state.open.proposal_at_s + until_s + 3.0
    silent = {peer: replace(view, lost=False) for peer, view in opener.state.peers.items()}
    state = replace(opener.state, peers=silent)
    assert strain_s(state, later_s) == MOST_STRAIN_S
    assert all(is_suspected(state, seat.peer, later_s) for seat in table.others(opener))


def test_of_many_who_are_missed_a_few_are_asked_at_a_time() -> None:
    """All would else ask all just when there is no processor left for it."""
    table = _exchanging(4 * FULL_MESH)
    opener = table.opener()
    lost = {seat.peer for seat in table.others(opener)[: 2 * FULL_MESH]}
    table.drops = lambda sender, to, message: isinstance(message, ResultReady) or bool({sender, to} & lost)
    table.run_for(SUSPECT_AFTER_S + 1.0)
    asked = [len(seat.state.open.asked_since) for seat in table.live() if seat.peer not in lost]
    assert max(asked) == MOST_ASKED


def test_of_many_who_are_missed_all_have_their_turn_however_many_a_liar_says_that_it_misses() -> None:
    table = _exchanging(4 * FULL_MESH)
    liar, far, *_ = (seat for seat in table.live() if seat is not table.opener())
    everybody = tuple(seat.peer for seat in table.others(liar))
    missed = [peer for peer in everybody if peer != far.peer and not do_watch(far.state, far.peer, peer)]
    assert len(missed) > 2 * MOST_ASKED
    state, asked = far.state, set[PeerId]()
    for step in range(1, 40):
        now_s = table.now_s + 0.2 * step
        state = with_view(
            state, replace(state.peers[liar.peer], silent=everybody, reported_at_s=now_s, heard_at_s=now_s)
        )
        state = ticked(state, RoundTicked(0.0), now_s).state
        asked |= set(state.open.asked_since)
        for peer in asked - {missed[-1]}:  # all but the frozen one answer
            state = with_view(state, replace(state.peers[peer], heard_at_s=now_s + 0.1))
    assert asked >= set(missed)
    assert missed[-1] in state.open.asked_since, "who does not answer goes on being asked"


# --- while nothing is open ----------------------------------------------------------------------------------------------------


def _idle(num_peers: int = FEW + 2) -> tuple[Table, Seat, Seat, Seat]:
    """So many who have heard each other and whose round is far away; two of them, and one that froze since."""
    table = Table(num_peers, max_members=64, longest_interval_s=600.0)
    for seat in table.live():
        seat.tokens = 0
    acquaint(table)
    table.now_s += 5.0
    seat, other, frozen, *_ = table.others(table.opener())
    table.perform = lambda at, action: None  # type: ignore[method-assign,assignment]
    return table, seat, other, frozen


def _is_dead(seat: Seat, other: Seat) -> bool:
    return not is_alive(seat.state, other.peer, seat.table.now_s, idle_patience_s(seat.state))


def _asked(orders: Sequence[Action]) -> list[PeerId]:
    return [peer for order in orders if isinstance(order, SendHeartbeat) for peer in order.to]


def test_among_many_a_peer_that_answers_no_heartbeats_is_taken_for_dead_and_told_in_the_next_heartbeats() -> None:
    table, seat, _, frozen = _idle()
    told = _asked(seat.feed(PeerLost(frozen.peer, table.now_s - 1.0, is_silent=True)))
    assert _is_dead(seat, frozen)
    assert heartbeat_of(seat).silent == (frozen.peer,)
    assert len(set(told)) == len(told) == NUM_TOLD_OF_SILENCE, "they do not wait for the next heartbeat that is due"
    assert frozen.peer not in told
    table.now_s += TOLD_FOR_S + 1.0
    assert heartbeat_of(seat).silent == ()


def test_among_a_few_nothing_follows_from_silence_that_no_patience_has_outlasted() -> None:
    table, seat, _, frozen = _idle(FEW)
    seat.feed(PeerLost(frozen.peer, table.now_s - 1.0, is_silent=True))
    assert not _is_dead(seat, frozen)
    assert heartbeat_of(seat).silent == ()


def test_a_peer_that_was_heard_since_is_not_silent_and_one_that_comes_back_is_told_no_more() -> None:
    table, seat, _, frozen = _idle()
    seat.feed(PeerLost(frozen.peer, table.now_s - 10.0, is_silent=True))
    assert not _is_dead(seat, frozen)
    seat.feed(PeerLost(frozen.peer, table.now_s - 1.0, is_silent=True))
    table.now_s += 1.0
    seat.hear(frozen, heartbeat_of(frozen))
    assert not _is_dead(seat, frozen)
    assert heartbeat_of(seat).silent == ()


def test_in_an_exchange_silence_of_a_member_is_left_to_its_watchers() -> None:
    table = _exchanging(FEW + 2)
    seat, other, *_ = table.others(table.opener())
    seat.feed(PeerLost(other.peer, table.now_s, is_silent=True))
    assert not _is_dead(seat, other)


def test_a_peer_that_another_calls_silent_is_asked_once_and_not_believed_dead() -> None:
    table, seat, other, frozen = _idle()
    other.feed(PeerLost(frozen.peer, table.now_s - 1.0, is_silent=True))
    seat.hear(other, heartbeat_of(other))
    assert missed_while_idle(seat.state, table.now_s) == (frozen.peer,)
    assert _asked(seat.feed(RoundTicked())).count(frozen.peer) == 1
    assert not _is_dead(seat, frozen)
    table.now_s += 1.0
    seat.hear(frozen, heartbeat_of(frozen))
    assert missed_while_idle(seat.state, table.now_s) == ()


@pytest.mark.parametrize("since_last_s", [0.5, 2.0, 100.0])
def test_a_peer_that_another_calls_silent_is_asked_whenever_the_next_heartbeat_is_due(since_last_s: float) -> None:
    table, seat, other, frozen = _idle()
    table.now_s += 50.0
    other.feed(PeerLost(frozen.peer, table.now_s - 1.0, is_silent=True))
    seat.hear(other, heartbeat_of(other))
    seat.state = replace(seat.state, pulse=replace(seat.state.pulse, heartbeat_at_s=table.now_s - since_last_s))
    assert frozen.peer in _asked(seat.feed(RoundTicked()))


def test_a_report_of_silence_is_old_after_a_while_and_costs_nothing_once_the_silence_is_known() -> None:
    table, seat, other, frozen = _idle()
    other.feed(PeerLost(frozen.peer, table.now_s - 1.0, is_silent=True))
    seat.hear(other, heartbeat_of(other))
    assert missed_while_idle(seat.state, table.now_s + REPORT_VALID_S + 1.0) == ()
    seat.feed(PeerLost(frozen.peer, table.now_s - 1.0, is_silent=True))
    assert missed_while_idle(seat.state, table.now_s) == ()


def test_of_many_silent_peers_the_latest_few_are_told_and_a_liar_makes_no_more_than_a_few_be_asked() -> None:
    table, seat, liar, *_ = _idle(FEW + 2 * MOST_TOLD)
    everybody = tuple(one.peer for one in table.others(seat, liar))
    for peer in everybody:
        seat.feed(PeerLost(peer, table.now_s - 1.0, is_silent=True))
    assert found_silent(seat.state, table.now_s) == everybody[-MOST_TOLD:]
    _, asker, _, *_ = table.others(table.opener(), seat, liar)
    asker.hear(liar, replace(heartbeat_of(liar), silent=everybody))
    assert len(missed_while_idle(asker.state, table.now_s)) <= MOST_TOLD
