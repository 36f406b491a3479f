"""A leader shows proofs before others follow its ballot, and cannot make them up.

Rules: R6, R16, R18 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.rounds.ballot_proofs import consent_problem, promise_problem
from protocol.rounds.events import PromiseLogged
from protocol.rounds.lineage.quorum import tie_holder
from protocol.rounds.messages.messages import (
    AckedRecord,
    Leave,
    PreVote,
    PreVoteRequest,
    Promise,
    PromiseRequest,
    RoundMessage,
    Settle,
)
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import decode_record, encode_message, encode_record
from protocol.rounds.orders import BeginExchange, GatherBytes, LogPromise, PrepareContribution
from protocol.rounds.voting import LEAVE_VERSION
from tests.protocol.rounds.made_commits import record_on, signed_record
from tests.protocol.rounds.round_table import (
    RUN_ID,
    UNIT,
    Seat,
    Table,
    acquaint,
    consents,
    first_proposal,
    promises,
    wanted,
)


def _table(num_peers: int = 5, **numbers: object) -> tuple[Table, Seat, Seat, Ballot]:
    """(table, a voter, who wants to take over, its ballot); orders are recorded only."""
    table = Table(num_peers, **numbers)  # type: ignore[arg-type]
    acquaint(table)
    table.perform = lambda at, action: None  # type: ignore[method-assign,assignment]
    asker, voter, *_ = (seat for seat in table.others(table.opener()) if seat.peer in table.genesis.roster)
    return table, voter, asker, Ballot(1, asker.peer)


def _by(seat: Seat, message: RoundMessage) -> bytes:
    return seat.sealed(encode_message(message))


def _consent(table: Table, seat: Seat, ballot: Ballot, objection: str = "") -> bytes:
    return _by(seat, PreVote(UNIT, table.genesis.commit, ballot, objection))


# --- consent to a take-over ---------------------------------------------------------------------------------------------------


def test_a_ballot_with_the_consent_of_a_quorum_may_take_over_and_its_asker_counts_as_one_of_it() -> None:
    table, voter, asker, ballot = _table()
    shown = [_consent(table, seat, ballot) for seat in table.others(asker)[:2]]
    assert consent_problem(voter.state, ballot, shown, lone=False, now_s=table.now_s) == ""
    few = consent_problem(voter.state, ballot, shown[:1], lone=False, now_s=table.now_s)
    assert few == "2 peers agreed to attempt 1; expected a quorum of the base roster"


def test_attempt_zero_needs_no_consent_for_the_base_names_its_owner() -> None:
    table, voter, asker, _ = _table()
    assert consent_problem(voter.state, Ballot(0, asker.peer), (), lone=False, now_s=table.now_s) == ""


def test_pre_votes_that_object_or_are_shown_twice_or_come_from_outside_the_roster_make_no_quorum() -> None:
    table, voter, asker, ballot = _table(8, num_founders=5)
    first, second, *_ = (seat for seat in table.others(asker) if seat.peer in table.genesis.roster)
    one = _consent(table, first, ballot)
    outside = [seat for seat in table.live() if seat.peer not in table.genesis.roster]
    for shown in (
        [one, _consent(table, second, ballot, "the opener is alive")],
        [one, one, one],
        [one, *(_consent(table, seat, ballot) for seat in outside)],
    ):
        assert "expected a quorum" in consent_problem(voter.state, ballot, shown, lone=False, now_s=table.now_s)


def test_a_pre_vote_that_is_forged_or_for_something_else_is_told_and_counts_nothing() -> None:
    table, voter, _, ballot = _table()
    good = list(consents(table, ballot))
    tampered = good[0][:-1] + bytes([good[0][-1] ^ 1])
    third = table.seats[table.genesis.roster[0]]
    for bad, words in (
        (tampered, "bad signature"),
        (b"", "an envelope of 0 bytes"),
        (_consent(table, third, Ballot(2, ballot.peer)), "for another ballot or base"),
        (_by(third, PreVote(UNIT, table.genesis.commit[::-1], ballot, "")), "for another ballot or base"),  # type: ignore[arg-type]
        (_by(third, Promise(UNIT, table.genesis.commit, ballot)), "expected a PreVote"),
    ):
        problem = consent_problem(voter.state, ballot, [*good[1:], bad], lone=False, now_s=table.now_s)
        assert problem.startswith("a pre-vote that does not count")
        assert words in problem


def test_whoever_asks_for_promises_without_a_quorums_consent_fences_nobody_off() -> None:
    """A member could else ask with a higher ballot at each tick, and no attempt of others would ever end."""
    table, voter, asker, ballot = _table()
    for attempt in range(1, 20):
        request = PromiseRequest(UNIT, table.genesis.commit, Ballot(attempt, asker.peer))
        assert voter.hear(asker, request) == ()
        assert "nothing is promised to" in voter.reasons[-1]
    assert voter.state.open.promised is None
    assert voter.hear(asker, wanted(table, ballot)) == (LogPromise(table.genesis.commit, ballot),)


def test_a_proposal_that_takes_over_without_a_quorums_consent_is_not_joined() -> None:
    table, voter, asker, ballot = _table(3)
    proposal = replace(first_proposal(table), ballot=ballot)
    assert voter.hear(asker, proposal) == ()
    assert "expected a quorum" in voter.reasons[-1]
    agreed = replace(proposal, pre_votes=consents(table, ballot))
    assert voter.hear(asker, agreed) == (PrepareContribution(proposal.base), BeginExchange(agreed))


def test_a_lone_attempt_is_followed_when_our_own_patience_is_over_whatever_its_leader_says() -> None:
    table, voter, asker, ballot = _table()
    request = PromiseRequest(UNIT, table.genesis.commit, ballot, lone=True)
    assert voter.hear(asker, request) == ()
    assert "a quorum of the base roster was in reach lately" in voter.reasons[-1]
    voter.state = replace(voter.state, alone_since_s=table.now_s - 1e6)
    assert voter.hear(asker, request) == (LogPromise(table.genesis.commit, ballot),)


def test_a_lone_proposal_is_joined_by_those_alone_who_promised_just_this_ballot() -> None:
    table, voter, asker, ballot = _table(3)
    voter.state = replace(voter.state, alone_since_s=table.now_s - 1e6)
    proposal = replace(first_proposal(table), ballot=ballot, lone=True)
    assert voter.hear(asker, proposal) == ()
    assert "a lone attempt that we did not promise" in voter.reasons[-1]
    voter.hear(asker, PromiseRequest(UNIT, table.genesis.commit, ballot, lone=True))
    voter.feed(PromiseLogged(table.genesis.commit, ballot))
    assert voter.hear(asker, replace(proposal, ballot=replace(ballot, attempt=2))) == ()
    assert "a lone attempt that we did not promise" in voter.reasons[-1]
    assert BeginExchange(proposal) in voter.hear(asker, proposal)


# --- promises of a quorum -----------------------------------------------------------------------------------------------------


def _settle(table: Table, ballot: Ballot, record: bytes, *shown: bytes, leaves: tuple[bytes, ...] = ()) -> Settle:
    return Settle(UNIT, table.genesis.commit, ballot, record, (), leaves, shown)


def _record(table: Table, ballot: Ballot, salt: int = 0) -> bytes:
    """An honest record; another salt makes another one."""
    table.live()[0].tokens = 100 + salt
    return encode_record(signed_record(table.genesis, table.live(), ballot=ballot))


def test_a_record_is_settled_with_the_promises_of_a_quorum_and_with_no_fewer() -> None:
    table, voter, asker, ballot = _table()
    settle = _settle(table, ballot, _record(table, ballot), *promises(table, ballot)[:3])
    assert voter.hear(asker, settle) == (GatherBytes(settle),)
    first = Ballot(0, asker.peer)
    assert promise_problem(voter.state, _settle(table, first, _record(table, first))) == ""
    assert "attempt 0 settles a record of attempt 1" in promise_problem(
        voter.state, _settle(table, first, settle.record)
    )
    old = _settle(table, ballot, _record(table, first), *promises(table, ballot)[:3])
    assert "a record of attempt 0 that nobody acked" in promise_problem(voter.state, old)
    few = _settle(table, ballot, settle.record, *promises(table, ballot)[:2])
    assert promise_problem(voter.state, few) == "2 promises to attempt 1; expected those of a quorum of the base roster"
    twice = _settle(table, ballot, settle.record, *promises(table, ballot)[:1] * 5)
    assert "1 promises to attempt 1" in promise_problem(voter.state, twice)


def test_a_leader_that_shows_no_promises_is_refused_and_gets_no_further_consent_on_the_base() -> None:
    table, voter, asker, ballot = _table()
    assert voter.hear(asker, _settle(table, ballot, _record(table, ballot))) == ()
    assert "0 promises to attempt 1" in voter.reasons[-1]
    higher = Ballot(2, asker.peer)
    voter.hear(asker, PreVoteRequest(UNIT, table.genesis.commit, higher, 1000.0))
    (vote,) = voter.sent(PreVote)
    assert isinstance(vote, PreVote)
    assert vote.objection == "its record on this base broke a rule"


def test_what_a_promise_says_was_acked_is_the_only_record_that_may_be_settled() -> None:
    """The round may be decided already: another record of a leader that passes the promises over would split it."""
    table, voter, asker, ballot = _table()
    old = AckedRecord(Ballot(0, table.opener().peer), _record(table, Ballot(0, table.opener().peer)))
    one = table.seats[table.genesis.roster[0]]
    shown = (
        _by(one, Promise(UNIT, table.genesis.commit, ballot, old)),
        *(raw for raw in promises(table, ballot)[1:3]),
    )
    other = _settle(table, ballot, _record(table, ballot, salt=1), *shown)
    assert voter.hear(asker, other) == ()
    assert "attempt 1 settles another record than the one acked in attempt 0" in voter.reasons[-1]
    again = _settle(table, ballot, old.record, *shown)
    assert promise_problem(voter.state, again) == ""
    assert voter.hear(asker, again) == (GatherBytes(again),)


def test_of_two_acked_records_the_one_of_the_higher_ballot_is_finished() -> None:
    table, voter, _, _ = _table()
    ballot, (one, two, three, *_) = Ballot(9, table.live()[0].peer), table.live()
    low, high = (
        AckedRecord(Ballot(attempt, table.opener().peer), _record(table, ballot, salt=attempt)) for attempt in (0, 5)
    )
    shown = [
        _by(seat, Promise(UNIT, table.genesis.commit, ballot, acked))
        for seat, acked in ((one, low), (two, high), (three, None))
    ]
    assert promise_problem(voter.state, _settle(table, ballot, high.record, *shown)) == ""
    assert "the one acked in attempt 5" in promise_problem(voter.state, _settle(table, ballot, low.record, *shown))


def test_an_acked_lone_record_binds_no_quorum() -> None:
    table, voter, _, ballot = _table()
    record = encode_record(record_on(table.genesis, list(table.seats)[:2], lone=True))
    shown = promises(table, ballot, AckedRecord(Ballot(0, table.opener().peer), record))
    assert promise_problem(voter.state, _settle(table, ballot, _record(table, ballot), *shown)) == ""


def test_an_acked_record_that_names_meaningless_bytes_binds_nobody_who_knows() -> None:
    """No honest peer acked it. Its leader may not finish it either, so that no later attempt could commit."""
    table, voter, _, ballot = _table()
    record = _record(table, Ballot(0, table.opener().peer))
    shown = promises(table, ballot, AckedRecord(Ballot(0, table.opener().peer), record))
    settle = _settle(table, ballot, _record(table, ballot, salt=1), *shown)
    assert "settles another record" in promise_problem(voter.state, settle)
    useless = frozenset({decode_record(record).slices[0].result_hash})
    voter.state = replace(voter.state, open=replace(voter.state.open, useless=useless))
    assert promise_problem(voter.state, settle) == ""


@pytest.mark.parametrize("acked", [b"no record", b""])
def test_what_is_no_record_was_never_acked_whoever_names_it_in_a_promise(acked: bytes) -> None:
    table, voter, _, ballot = _table()
    shown = promises(table, ballot, AckedRecord(Ballot(0, table.opener().peer), acked))
    assert promise_problem(voter.state, _settle(table, ballot, _record(table, ballot), *shown)) == ""


# --- goodbyes -----------------------------------------------------------------------------------------------------------------


def _left(table: Table, leaver: Seat, acked: AckedRecord | None = None) -> bytes:
    return _by(leaver, Leave(leaver.member, UNIT, table.genesis.commit, None, acked, version=LEAVE_VERSION))


def test_a_goodbye_that_is_shown_makes_a_quorum_smaller_for_a_voter_that_has_not_heard_it() -> None:
    table, voter, asker, ballot = _table()
    leaver, *_ = (seat for seat in table.others(asker, voter) if seat.peer != tie_holder(RUN_ID, table.genesis.roster))
    rest = [seat for seat in table.live() if seat is not leaver]
    holder = table.seats[tie_holder(RUN_ID, [seat.peer for seat in rest])]
    two = (holder, next(seat for seat in rest if seat is not holder))
    shown = [_by(seat, Promise(UNIT, table.genesis.commit, ballot)) for seat in two]
    record = _record(table, ballot)
    assert "2 promises" in promise_problem(voter.state, _settle(table, ballot, record, *shown))
    settle = _settle(table, ballot, record, *shown, leaves=(_left(table, leaver),))
    assert promise_problem(voter.state, settle) == ""


def test_what_a_leaver_acked_is_finished_only_where_the_promises_are_no_quorum_without_it() -> None:
    """A leader with a quorum of promises need not finish it, and the bytes may have gone with the leaver. A voter that asked for it
    all the same would hold up every later attempt.
    """
    table, voter, _, ballot = _table(3)
    holder = table.seats[tie_holder(RUN_ID, table.genesis.roster)]
    leaver, third = (seat for seat in table.live() if seat is not holder)
    electorate = [seat.peer for seat in (holder, third)]
    acked = AckedRecord(Ballot(0, table.opener().peer), _record(table, Ballot(0, table.opener().peer)))
    leaves = (_left(table, leaver, acked),)
    all_but_one = [_by(seat, Promise(UNIT, table.genesis.commit, ballot)) for seat in (holder, third)]
    other = _record(table, ballot, salt=1)
    assert promise_problem(voter.state, _settle(table, ballot, other, *all_but_one, leaves=leaves)) == ""
    alone = table.seats[tie_holder(RUN_ID, electorate)]
    single = _by(alone, Promise(UNIT, table.genesis.commit, ballot))
    problem = promise_problem(voter.state, _settle(table, ballot, other, single, leaves=leaves))
    assert "settles another record than the one acked in attempt 0" in problem
    assert promise_problem(voter.state, _settle(table, ballot, acked.record, single, leaves=leaves)) == ""


def test_a_goodbye_in_anothers_name_or_on_another_base_makes_no_quorum_smaller() -> None:
    table, voter, asker, ballot = _table()
    shown = promises(table, ballot)[:2]
    leaver, liar = table.others(voter, asker)[:2]
    forged = _by(liar, Leave(leaver.member, UNIT, table.genesis.commit, None, None))
    assert voter.hear(asker, _settle(table, ballot, _record(table, ballot), *shown, leaves=(forged,))) == ()
    assert "a goodbye that does not count" in voter.reasons[-1]
    old = _by(leaver, Leave(leaver.member, UNIT, table.genesis.commit[::-1], None, None))  # type: ignore[arg-type]
    problem = promise_problem(voter.state, _settle(table, ballot, _record(table, ballot), *shown, leaves=(old,)))
    assert "2 promises" in problem
