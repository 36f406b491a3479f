from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import pytest

from protocol.ids import CommitId, PeerId
from protocol.rounds.events import (
    LeaveOrdered,
    MessageArrived,
    PeerLost,
    PeersAnswered,
    PeersListed,
    Progressed,
    RoundTicked,
)
from protocol.rounds.liveness import BUSY_TICK_S, can_wait, next_tick_s
from protocol.rounds.messages.messages import Ack, AckedRecord, Leave, PreVoteRequest, Proposal, Settle
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import encode_record
from protocol.rounds.orders import DropMember, LogPromise, SendHeartbeat
from protocol.rounds.queries import (
    GONE_PATIENCE_S,
    NUM_HEARTBEAT_PEERS,
    idle_patience_s,
    is_alive,
    is_suspected,
    silence_s,
)
from protocol.rounds.voting import LEAVE_VERSION
from tests.protocol.rounds.made_commits import record_on
from tests.protocol.rounds.round_table import UNIT, Seat, Table, acquaint, first_proposal, heartbeat_of


def _leave(seat: Seat, promised: Ballot | None = None, acked: AckedRecord | None = None) -> Leave:
    return Leave(seat.member, UNIT, seat.head.commit, promised, acked, version=LEAVE_VERSION)


# --- who is there -------------------------------------------------------------------------------------------------------------


def test_a_reset_is_a_death_at_once_and_the_next_word_a_return() -> None:
    table = Table(3)
    seat, other = table.live()[:2]
    seat.hear(other, heartbeat_of(other))
    assert is_alive(seat.state, other.peer, table.now_s, 5.0)
    seat.feed(PeerLost(other.peer))
    assert not is_alive(seat.state, other.peer, table.now_s, 5.0)
    seat.feed(PeersAnswered(((other.peer, table.now_s),)))
    assert is_alive(seat.state, other.peer, table.now_s, 5.0)


def test_whether_the_round_is_due_is_left_to_the_next_tick_where_nobody_went_but_a_mere_peer() -> None:
    table = Table(4)
    acquaint(table)
    opener = table.opener()
    seat, other, third = table.others(opener)
    for how in (PeerLost(other.peer), PeerLost(opener.peer)):
        assert seat.state.open.due_since_s is None
        seat.feed(Progressed(1 << 20, True))
        seat.feed(how)
    assert seat.state.open.due_since_s == table.now_s, "who is expected to open is gone"
    third.feed(Progressed(1 << 20, True))
    third.feed(PeerLost(other.peer))
    assert third.state.open.due_since_s is None
    third.feed(RoundTicked())
    assert third.state.open.due_since_s == table.now_s


def test_a_reset_from_before_the_last_answer_is_no_death() -> None:
    table = Table(3)
    seat, other = table.live()[:2]
    seat.feed(PeersAnswered(((other.peer, table.now_s),)))
    seat.feed(PeerLost(other.peer, table.now_s - 0.1))
    assert is_alive(seat.state, other.peer, table.now_s, 5.0)
    seat.feed(PeerLost(other.peer, table.now_s))
    assert not is_alive(seat.state, other.peer, table.now_s, 5.0)


def test_a_listed_peer_that_never_spoke_is_not_taken_for_alive() -> None:
    table = Table(3)
    seat, other = table.live()[:2]
    seat.feed(PeersListed((other.peer, seat.peer)))
    assert seat.peer not in seat.state.peers
    assert not is_alive(seat.state, other.peer, table.now_s, 60.0)


def test_who_is_listed_no_more_is_forgotten_unless_it_is_heard_or_votes() -> None:
    table = Table(4, num_founders=2)
    seat, voter, joiner, gone = table.live()
    seat.hear(joiner, heartbeat_of(joiner))
    assert gone.peer in seat.state.peers
    seat.feed(PeersListed(()))
    assert set(seat.state.peers) == {voter.peer, joiner.peer}


def test_heartbeats_that_are_told_together_leave_what_they_leave_one_by_one() -> None:
    table = Table(4)
    acquaint(table)
    seat, one, two, three = table.live()
    table.now_s += 1.0
    words = [replace(heartbeat_of(other), exchange_ms=number) for number, other in enumerate((one, two, three))]
    seat.hear(one, _leave(one))
    before, apart = seat.state, seat
    for other, word in zip((one, two, three), words, strict=True):
        apart.hear(other, word)
    one_by_one, seat.state = seat.state.peers, before
    seat.feed(PeersAnswered((), tuple((word, table.now_s) for word in words)))
    assert seat.state.peers == one_by_one
    assert seat.state.peers[one.peer].left


def test_a_heartbeat_can_wait_of_who_stands_with_us_is_not_taken_for_dead_and_is_no_earlier_process() -> None:
    table = Table(3)
    seat, other = table.live()[:2]
    word = replace(heartbeat_of(other), exchange_ms=7)
    assert not can_wait(replace(seat.state, peers=MappingProxyType({})), word), "never listed nor heard"
    assert can_wait(seat.state, word), "listed, and heard for the first time"
    seat.hear(other, heartbeat_of(other))
    assert can_wait(seat.state, word)
    assert can_wait(seat.state, replace(word, member=replace(word.member, session=word.member.session + 1)))
    assert not can_wait(seat.state, replace(word, member=replace(word.member, session=word.member.session - 1)))
    elsewhere = replace(word.heads[0], head=CommitId(bytes(31) + b"1"))
    assert not can_wait(seat.state, replace(word, heads=(elsewhere,)))
    assert can_wait(seat.state, replace(word, heads=())), "it holds other units"
    seat.feed(PeerLost(other.peer))
    assert not can_wait(seat.state, word)


# --- our own sleep ------------------------------------------------------------------------------------------------------------


def test_our_own_sleep_makes_nobody_silent_and_no_patience_shorter() -> None:
    table = Table(3)
    acquaint(table)
    seat, other = table.live()[:2]
    seat.state = replace(seat.state, alone_since_s=table.now_s)
    table.now_s += 60.0
    seat.feed(RoundTicked(lag_s=60.0))
    assert not is_suspected(seat.state, other.peer, table.now_s)
    assert seat.state.alone_since_s is None


def test_a_tick_that_comes_as_late_as_ticks_do_leaves_what_is_known_of_peers_alone() -> None:
    table = Table(3)
    acquaint(table)
    seat = table.live()[0]
    known = seat.state.peers
    seat.feed(RoundTicked(lag_s=0.009))
    assert seat.state.peers is known
    table.now_s += 0.7
    seat.feed(RoundTicked(lag_s=0.5))
    assert seat.state.peers is not known


def test_a_sleeper_that_was_alone_before_goes_on_waiting_from_where_it_was() -> None:
    table = Table(3)
    seat = table.live()[0]
    seat.feed(RoundTicked())
    assert seat.state.alone_since_s == table.now_s
    table.now_s += 60.0
    seat.feed(RoundTicked(lag_s=55.0))
    assert seat.state.alone_since_s == table.now_s - 5.0


def test_what_arrived_just_before_the_late_tick_is_not_believed_to_come_from_the_future() -> None:
    table = Table(3)
    acquaint(table)
    seat, other = table.live()[:2]
    table.now_s += 60.0
    seat.hear(other, heartbeat_of(other))
    seat.feed(RoundTicked(lag_s=60.0))
    assert seat.state.peers[other.peer].heard_at_s == table.now_s


WAITING: Final = {
    "a message": lambda seat, other: MessageArrived(other.peer, heartbeat_of(other), b""),
    "answers": lambda seat, other: PeersAnswered(((other.peer, seat.table.now_s),)),
    "a list": lambda seat, other: PeersListed((other.peer,)),
    "progress": lambda seat, other: Progressed(100, True),
}
"""Events that may be handled first when a process goes on."""


@pytest.mark.parametrize("first", WAITING)
def test_whatever_comes_first_after_a_sleep_the_sleep_is_forgiven_before_and_only_once(first: str) -> None:
    table = Table(5)
    acquaint(table)
    seat, other, *others = table.live()
    seat.feed(RoundTicked())
    seat.state = replace(seat.state, alone_since_s=table.now_s - 20.0)
    slept_s, patience_s = 120.0, idle_patience_s(seat.state)
    table.now_s += slept_s
    seat.feed(WAITING[first](seat, other))
    assert all(is_alive(seat.state, each.peer, table.now_s, patience_s) for each in others)
    assert seat.state.alone_since_s is not None
    waited_s = table.now_s - seat.state.alone_since_s
    assert 20.0 <= waited_s < 21.0
    seat.state = replace(seat.state, peers=MappingProxyType({}))  # nobody is there to end the patience
    seat.feed(RoundTicked(lag_s=slept_s))
    assert table.now_s - seat.state.alone_since_s == waited_s


def test_a_tick_that_is_only_a_little_late_is_no_sleep() -> None:
    table = Table(3)
    acquaint(table)
    seat, other = table.live()[:2]
    seat.feed(RoundTicked())
    known = seat.state.peers[other.peer]
    table.now_s += next_tick_s(seat.state) + seat.state.config.suspect_after_s - 0.1
    seat.feed(Progressed(100, True))
    assert seat.state.peers[other.peer] == known
    assert seat.state.pulse.woke_at_s is None


@pytest.mark.parametrize("is_tick", [True, False])
@pytest.mark.parametrize(("silent_s", "is_sleep"), [(GONE_PATIENCE_S - 0.1, False), (GONE_PATIENCE_S + 0.1, True)])
def test_a_process_that_handles_messages_and_is_late_with_its_tick_did_not_sleep(
    silent_s: float, is_sleep: bool, is_tick: bool
) -> None:
    """The time since its last step counts, not that since its tick was due."""
    table = Table(3)
    acquaint(table)
    seat = table.live()[0]
    seat.feed(RoundTicked())
    table.now_s = seat.state.pulse.tick_due_s + seat.state.config.suspect_after_s - 0.1
    seat.feed(Progressed(100, True))
    table.now_s += silent_s
    seat.feed(RoundTicked(table.now_s - seat.state.pulse.tick_due_s) if is_tick else Progressed(100, True))
    assert (seat.state.pulse.woke_at_s is not None) == is_sleep


@pytest.mark.parametrize("heartbeat_s", [1.0, 4.9, 60.0])
def test_a_step_that_asks_for_an_earlier_tick_is_no_sleep(heartbeat_s: float) -> None:
    """Ticks are as rare as heartbeats while nothing is open; a proposal comes between two of them, and other messages behind it."""
    table = Table(3)
    table.perform = lambda at, action: None  # type: ignore[method-assign,assignment]
    acquaint(table)
    opener = table.opener()
    seat, other = table.others(opener)
    seat.reconfigure(heartbeat_s=heartbeat_s)
    seat.feed(RoundTicked())
    known = seat.state.peers[other.peer]
    table.now_s += 0.95 * next_tick_s(seat.state)
    seat.hear(opener, first_proposal(table))
    assert next_tick_s(seat.state) == BUSY_TICK_S
    seat.hear(opener, heartbeat_of(opener))
    assert seat.state.peers[other.peer] == known
    assert seat.state.pulse.woke_at_s is None


# --- ticks and heartbeats -----------------------------------------------------------------------------------------------------


def test_heartbeats_go_to_a_constant_number_of_peers_in_a_large_swarm() -> None:
    table = Table(3)
    seat = table.live()[0]
    many = tuple(f"stranger{i:03}" for i in range(100))
    seat.feed(PeersListed(many))  # type: ignore[arg-type]
    table.perform = lambda at, action: None  # type: ignore[method-assign,assignment]
    asked: set[str] = set()
    for _ in range(60):
        table.now_s += 1.0
        for action in seat.feed(RoundTicked()):
            if isinstance(action, SendHeartbeat):
                assert len(action.to) <= NUM_HEARTBEAT_PEERS + 1
                asked.update(action.to)
    assert asked >= set(many)


def test_who_left_is_passed_over_and_everybody_else_hears_from_us_in_every_turn() -> None:
    table = Table(8)
    acquaint(table)
    seat, *others = table.live()
    gone, here = others[1:4], [*others[:1], *others[4:]]
    for leaver in gone:
        seat.hear(leaver, _leave(leaver))
    table.perform = lambda at, action: None  # type: ignore[method-assign,assignment]
    for _ in range(2):
        reported: set[str] = set()
        for _ in range(-(-len(others) // NUM_HEARTBEAT_PEERS)):
            table.now_s += 1.0
            reported.update(*(action.to for action in seat.feed(RoundTicked()) if isinstance(action, SendHeartbeat)))
        assert reported - {leaver.peer for leaver in gone} == {other.peer for other in here}


def test_in_an_exchange_every_two_members_exchange_a_sign_of_life_twice_a_second() -> None:
    table = Table(8)
    table.drops = lambda sender, to, message: isinstance(message, Settle)
    table.run_until(lambda: all(seat.state.open.exchange is not None for seat in table.live()), 10.0)
    before = {seat.peer: len(seat.ordered(SendHeartbeat)) for seat in table.live()}
    table.run_for(3.0)
    asked = Counter[frozenset[PeerId]]()
    for seat in table.live():
        for ping in seat.ordered(SendHeartbeat)[before[seat.peer] :]:
            assert isinstance(ping, SendHeartbeat)
            asked.update(frozenset((seat.peer, to)) for to in ping.to)
    assert len(asked) == 8 * 7 // 2
    assert set(asked.values()) == {6}


def test_the_machine_wants_to_be_woken_more_often_while_a_round_is_open() -> None:
    table = Table(3)
    (seat, *_) = table.live()
    assert next_tick_s(seat.state) == max(BUSY_TICK_S, seat.state.config.heartbeat_s / 2)
    acquaint(table)
    for one in table.live():
        one.feed(RoundTicked())
    assert next_tick_s(seat.state) == BUSY_TICK_S


def test_between_slow_heartbeats_the_machine_is_left_alone() -> None:
    table = Table(3)
    (seat, *_) = table.live()
    slow = replace(seat.state, config=replace(seat.state.config, heartbeat_s=30.0))
    assert next_tick_s(slow) == 30.0


# --- suspicion in an exchange -------------------------------------------------------------------------------------------------


def _exchanging(table: Table) -> Seat:
    """The opener, while an exchange goes on that does not end."""
    table.drops = lambda sender, to, message: isinstance(message, Settle)
    table.run_until(lambda: all(seat.state.open.exchange is not None for seat in table.live()), 10.0)
    return table.opener()


def _with_one_unheard() -> tuple[Table, Seat]:
    """Four in an exchange that does not end, and a member of it whose heartbeats stop."""
    table = Table(4)
    (unheard, *_) = table.others(_exchanging(table))
    table.freeze(unheard)
    return table, unheard


def test_a_member_that_fell_silent_is_dropped_from_the_exchange() -> None:
    table, frozen = _with_one_unheard()
    table.run_for(2.0)
    assert not any(DropMember(frozen.peer, "silent") in seat.orders for seat in table.others(frozen))
    table.run_for(1.5)
    assert all(DropMember(frozen.peer, "silent") in seat.orders for seat in table.others(frozen))


def test_a_member_whose_heartbeats_are_lost_is_not_missed_while_its_stream_brings_something() -> None:
    table, unheard = _with_one_unheard()
    for _ in range(20):
        table.run_for(0.2)
        for seat in table.others(unheard):
            seat.feed(RoundTicked(bringing=(unheard.peer,)))
    assert not any(DropMember(unheard.peer, "silent") in seat.orders for seat in table.others(unheard))
    table.run_for(3.5)
    assert all(DropMember(unheard.peer, "silent") in seat.orders for seat in table.others(unheard))


def test_last_bytes_of_a_member_whose_process_is_gone_do_not_bring_it_back() -> None:
    table = Table(4)
    opener = _exchanging(table)
    (dead, *_) = table.others(opener)
    opener.feed(PeerLost(dead.peer))
    opener.feed(RoundTicked(bringing=(dead.peer,)))
    assert is_suspected(opener.state, dead.peer, table.now_s)


def test_a_member_whose_process_is_gone_is_dropped_at_once() -> None:
    table = Table(4)
    opener = _exchanging(table)
    (dead, *_) = table.others(opener)
    assert DropMember(dead.peer, "lost") in opener.feed(PeerLost(dead.peer))


# --- goodbyes -----------------------------------------------------------------------------------------------------------------


def test_who_says_goodbye_is_not_waited_for() -> None:
    table = Table(4)
    opener = _exchanging(table)
    (leaver, *_) = table.others(opener)
    leaver.feed(LeaveOrdered())
    table.talk()
    assert DropMember(leaver.peer, "left") in opener.orders
    assert is_suspected(opener.state, leaver.peer, table.now_s)
    assert leaver.peer in opener.state.open.departures


SPOKEN: Final = {
    "a heartbeat": lambda seat, other: MessageArrived(other.peer, heartbeat_of(other), b""),
    "heartbeats that waited": lambda seat, other: PeersAnswered((), ((heartbeat_of(other), seat.table.now_s),)),
    "an answer": lambda seat, other: PeersAnswered(((other.peer, seat.table.now_s),)),
    "its goodbye again": lambda seat, other: MessageArrived(other.peer, _leave(other), b""),
    "a question": lambda seat, other: MessageArrived(
        other.peer, PreVoteRequest(UNIT, seat.head.commit, Ballot(3, other.peer), 9.0), b""
    ),
    "bytes": lambda seat, other: RoundTicked(bringing=(other.peer,)),
}
"""Signs of life of a process."""


@pytest.mark.parametrize("word", SPOKEN)
def test_a_process_that_said_goodbye_and_goes_on_speaking_is_silent_from_its_goodbye_on(word: str) -> None:
    """A take-over counts the time since it was last heard."""
    table = Table(4)
    acquaint(table)
    seat, leaver = table.live()[:2]
    seat.hear(leaver, _leave(leaver))
    left_at_s = table.now_s
    for _ in range(10):
        table.now_s += 0.5
        seat.feed(SPOKEN[word](seat, leaver))
    assert seat.state.peers[leaver.peer].heard_at_s == left_at_s
    assert silence_s(seat.state, leaver.peer, table.now_s) == 5.0


def test_the_first_goodbye_on_a_base_stands() -> None:
    table = Table(3)
    seat, leaver = table.live()[:2]
    first, second = _leave(leaver, promised=Ballot(2, seat.peer)), _leave(leaver, promised=Ballot(9, seat.peer))
    for leave in (first, second):
        seat.hear(leaver, leave)
    assert seat.state.open.departures == {leaver.peer: first}


def test_a_goodbye_on_another_base_or_with_a_record_that_does_not_fit_leaves_the_quorum_as_it_is() -> None:
    table = Table(3)
    acquaint(table)
    seat, leaver = table.live()[:2]
    elsewhere = replace(_leave(leaver), base=encode_record(record_on(table.genesis, [leaver.peer]))[:32])  # type: ignore[arg-type]
    seat.hear(leaver, elsewhere)
    assert seat.state.open.leaves == {}
    seat.hear(leaver, _leave(leaver, acked=AckedRecord(Ballot(0, leaver.peer), b"no record")))
    assert seat.state.open.leaves == {}
    assert seat.state.peers[leaver.peer].left
    seat.hear(leaver, _leave(leaver))
    assert set(seat.state.open.leaves) == {leaver.peer}


def test_a_goodbye_in_anothers_name_is_none() -> None:
    table = Table(3)
    acquaint(table)
    seat, one, two = table.live()
    seat.hear(one, _leave(two))
    assert not seat.state.peers[two.peer].left
    assert seat.state.open.leaves == {}


def test_who_comes_back_in_another_session_is_there_again_and_votes_on_the_next_base_only() -> None:
    table = Table(4)
    table.run_until(lambda: table.all_at(1))
    (leaver, *_) = table.others(table.opener())
    leaver.feed(LeaveOrdered())
    table.talk()
    table.kill(leaver)
    base = leaver.head.commit
    table.restart(leaver)
    start = max(seat.head.index for seat in table.live())
    table.run_until(lambda: table.all_at(start + 2))
    assert not any(order.base == base for order in leaver.ordered(LogPromise)[1:] if isinstance(order, LogPromise))
    assert leaver.state.may_vote
    assert leaver.peer in leaver.head.roster


def test_acks_of_an_older_ballot_are_no_help_to_a_goodbye() -> None:
    table = Table(3)
    acquaint(table)
    seat, leaver = table.live()[:2]
    seat.hear(leaver, _leave(leaver, promised=Ballot(9, leaver.peer)))
    assert set(seat.state.open.departures) == {leaver.peer}
    assert seat.sent(Ack) == []
    assert seat.sent(Proposal) == []
