"""Attacks between votes: late votes, goodbyes and restarts in the middle of an attempt, played against the rules that answer them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.rounds.events import LeaveOrdered, PeerLost, RoundTicked
from protocol.rounds.messages.messages import (
    Ack,
    Committed,
    Heartbeat,
    PreVote,
    PreVoteRequest,
    Promise,
    PromiseRequest,
    Proposal,
    ResultReady,
    Settle,
)
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import encode_message, encode_record
from protocol.rounds.orders import LogAck
from tests.protocol.rounds.made_commits import signed_record
from tests.protocol.rounds.round_table import UNIT, Answer, Parcel, Seat, Table, acquaint

Judge = Callable[[Parcel], bool]


def _nothing(parcel: Parcel) -> bool:
    return False


def _talk(table: Table, is_allowed: Judge, is_late: Judge = _nothing) -> list[Parcel]:
    """Deliver what is allowed until nothing is on its way; what is late is given back, all else is lost."""
    late: list[Parcel] = []
    while table.queue:
        item = table.queue.popleft()
        if isinstance(item, Answer):
            table.deliver(item)
        elif is_late(item):
            late.append(item)
        elif is_allowed(item):
            table.deliver(item)
    return late


def _until_asking(table: Table, *seats: Seat) -> None:
    for _ in range(60):
        if all(seat.state.open.leading is not None for seat in seats):
            return
        table.now_s += 0.2
        for seat in seats:
            if seat.state.open.leading is None:
                seat.feed(RoundTicked())
    raise AssertionError([seat.reasons[-3:] for seat in seats])


def _lose(seats: list[Seat], *gone: Seat) -> None:
    for seat in seats:
        for other in gone:
            seat.feed(PeerLost(other.peer))


def _settled_by_three(table: Table, ballot: Ballot, *members: Seat) -> Settle:
    """A record of these members, with promises to its ballot, whose bytes everybody has."""
    roster = table.genesis.roster
    record = replace(
        signed_record(table.genesis, members, ballot=ballot), roster=roster, incarnations=(1,) * len(roster)
    )
    for seat in table.live():
        seat.disk.results |= {part.result_hash for part in record.slices}
    promise = encode_message(Promise(UNIT, table.genesis.commit, ballot, None))
    promises = tuple(seat.sealed(promise) for seat in members)
    return Settle(UNIT, table.genesis.commit, ballot, encode_record(record), (), promises=promises)


def test_late_pre_votes_do_not_take_a_promise_back_that_was_given_meanwhile() -> None:
    """A peer asks whether attempt 1 is wanted, acks a record of attempt 2 meanwhile, and then gets its yes."""
    table = Table(5)
    acquaint(table)
    first = table.opener()
    asking, leader, liar, other = sorted(table.others(first), key=lambda seat: seat.peer)
    _lose([asking, leader, liar, other], first)
    _until_asking(table, asking)
    table.queue.clear()
    asking.hear(leader, _settled_by_three(table, Ballot(2, leader.peer), asking, leader, first))
    _talk(table, _nothing)
    assert asking.sent(Ack)
    for seat in (first, other):
        asking.hear(seat, PreVote(UNIT, table.genesis.commit, Ballot(1, asking.peer), ""))
    asking.hear(liar, _settled_by_three(table, Ballot(1, liar.peer), first, liar, other))
    _talk(table, _nothing)
    assert [order.ballot.attempt for order in asking.ordered(LogAck)] == [2]
    assert asking.state.open.promised == Ballot(2, leader.peer)


def test_three_ballots_and_late_pre_votes_make_no_two_certificates_of_one_base() -> None:
    """Two ask for attempt 1; one of them settles and is cut off, the other acks attempt 2, whose certificate dies with its makers."""
    table = Table(5)
    acquaint(table)
    first = table.opener()
    late, one, cut, two = sorted(table.others(first), key=lambda seat: seat.peer)
    _lose([late, one, cut, two], first)
    _until_asking(table, late, cut)

    def is_for_late(parcel: Parcel) -> bool:
        return isinstance(parcel.message, PreVote) and parcel.to == late.peer

    def to_all_but_late(parcel: Parcel) -> bool:
        said = parcel.message
        if isinstance(said, PromiseRequest | Promise):
            return late.peer not in (parcel.to, parcel.sender)
        if isinstance(said, Settle):
            return parcel.to == cut.peer
        return isinstance(said, PreVoteRequest | PreVote | Proposal | ResultReady | Heartbeat | Ack)

    held = _talk(
        table, to_all_but_late, lambda p: is_for_late(p) or (isinstance(p.message, Settle) and p.to == late.peer)
    )
    settles = [parcel for parcel in held if isinstance(parcel.message, Settle)]
    assert settles
    assert cut.state.open.acked is not None
    assert cut.state.open.acked.ballot == Ballot(1, cut.peer)
    table.split(cut)
    _lose([late, one, two, first], cut)
    successor = _first_to_lead(table, one, two)
    other = two if successor is one else one

    def among_three(parcel: Parcel) -> bool:
        said = parcel.message
        if isinstance(said, PromiseRequest | Promise):
            return late.peer not in (parcel.to, parcel.sender)
        if isinstance(said, Settle):
            return parcel.to in (late.peer, successor.peer, first.peer)
        return not isinstance(said, Committed)

    held += _talk(table, among_three, is_for_late)
    assert table.certified
    assert late.state.open.acked is not None
    assert late.state.open.acked.ballot == Ballot(2, successor.peer)
    for seat in (successor, first):
        table.kill(seat)
    for parcel in [*filter(is_for_late, held), *settles]:
        table.cuts.clear()
        table.deliver(parcel)
        _talk(table, _nothing)
    table.heal()
    _lose([late, cut, other], successor, first)
    table.run_until(lambda: table.all_at(1), 120.0)  # the table itself holds that a base has one certificate


def _first_to_lead(table: Table, *seats: Seat) -> Seat:
    for _ in range(60):
        for seat in seats:
            seat.feed(RoundTicked())
            if seat.state.open.leading is not None:
                return seat
        table.now_s += 0.2
    raise AssertionError([seat.reasons[-3:] for seat in seats])


@pytest.mark.parametrize("says_goodbye", [False, True])
def test_two_of_three_go_on_when_their_leader_goes_with_a_slice_that_nobody_else_has(says_goodbye: bool) -> None:
    """It acked the record; a quorum of the whole roster promised a higher ballot, so nobody can have committed it or ever will."""
    table = Table(3, longest_interval_s=20.0)
    acquaint(table)
    leader = table.opener()
    others = table.others(leader)
    table.withheld, table.no_uploads = {leader.peer}, {leader.peer}
    leader.feed(RoundTicked())
    table.talk()
    leader.disk.results |= {header.result_hash for header in leader.state.open.results.values()}
    table.retry(leader)
    table.talk()
    assert leader.state.open.acked is not None
    assert all(seat.state.open.acked is None for seat in others)
    if says_goodbye:
        leader.feed(LeaveOrdered())
        table.talk()
    table.kill(leader)
    _lose(others, leader)
    table.run_until(lambda: all(seat.head.index >= 1 for seat in others), 60.0)


def test_a_member_that_was_restarted_in_an_exchange_is_counted_on_in_the_next_attempt() -> None:
    """Its leader dies there, too, so that its vote is needed."""
    table = Table(3, longest_interval_s=60.0)
    table.run_until(lambda: table.all_at(1))
    index = max(seat.head.index for seat in table.live())
    table.run_until(lambda: {seat.head.index for seat in table.live()} == {index}, 10.0)
    leader = table.opener()
    voter, third = table.others(leader)
    table.drops = lambda sender, to, message: isinstance(message, ResultReady | Settle)
    table.run_until(lambda: all(seat.state.open.proposal is not None for seat in table.live()), 70.0)
    table.kill(leader)
    table.restart(voter)
    table.drops = lambda sender, to, message: False
    table.run_until(lambda: min(voter.head.index, third.head.index) > index, 30.0)
