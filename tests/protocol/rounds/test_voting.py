from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.ids import CommitId
from protocol.rounds.events import AckLogged, BytesHeld, LeaveLogged, LeaveOrdered, PeerLost, PromiseLogged, RoundTicked
from protocol.rounds.leading import OVERDUE_FACTOR
from protocol.rounds.lineage.quorum import electorate
from protocol.rounds.messages.messages import (
    Ack,
    AckedRecord,
    Committed,
    Leave,
    PreVote,
    PreVoteRequest,
    Promise,
    PromiseRequest,
    Proposal,
    Refusal,
    Settle,
)
from protocol.rounds.messages.record import LAST_ATTEMPT, NO_SPINE, Ballot, OuterStep
from protocol.rounds.messages.wire import decode_record, encode_record
from protocol.rounds.orders import GatherBytes, LogAck, LogLeave, LogPromise, Send, SendHeartbeat
from protocol.rounds.schedule.liveness_timing import SUSPECT_AFTER_S
from protocol.rounds.schedule.stagger import Stagger
from protocol.rounds.state import LeaderAttempts
from protocol.rounds.voting import ACK_VERSION, LEAVE_VERSION, MOST_LED, NOTICED_WITHIN_S, is_owed_bytes
from tests.protocol.rounds.made_commits import commit_on, made_spine, record_on, signed_record
from tests.protocol.rounds.round_table import UNIT, Seat, Table, acquaint, heartbeat_of, mute, wanted


def _settled(table: Table) -> tuple[Seat, Settle]:
    """A member other than the opener that has a settled record before it, its bytes not yet on disk."""
    table.gathers = False
    opener = table.opener()
    (seat, *_) = table.others(opener)
    table.run_until(lambda: bool(seat.ordered(GatherBytes)), 10.0)
    mute(table)
    order = seat.ordered(GatherBytes)[0]
    assert isinstance(order, GatherBytes)
    return seat, order.settle


def _other_record(record: bytes) -> bytes:
    first = decode_record(record)
    return encode_record(replace(first, next_target_tokens=first.next_target_tokens + 1))


# --- acks ---------------------------------------------------------------------------------------------------------------------


def test_an_ack_is_written_only_when_all_bytes_are_on_disk_and_told_only_when_written() -> None:
    seat, settle = _settled(Table(3))
    assert seat.ordered(LogAck) == []
    (order,) = seat.feed(BytesHeld(settle))
    assert isinstance(order, LogAck)
    assert not order.lone
    assert seat.sent(Ack) == []
    (reported,) = seat.feed(AckLogged(order.base, order.ballot, order.commit))
    assert reported == Send(
        (settle.ballot.peer,), Ack(UNIT, settle.base, settle.ballot, order.commit, version=ACK_VERSION)
    )


def test_bytes_that_arrive_after_a_higher_promise_are_not_acked() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    (asker,) = table.others(seat, table.opener())
    seat.hear(asker, wanted(table, Ballot(9, asker.peer)))
    assert not any(isinstance(a, LogAck) for a in seat.feed(BytesHeld(settle)))
    assert seat.state.open.acked is None


def test_a_settle_below_a_promise_is_refused() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    (asker,) = table.others(seat, table.opener())
    high = Ballot(2, asker.peer)
    seat.hear(asker, wanted(table, high))
    assert seat.hear(table.opener(), settle) == (Send((settle.ballot.peer,), Refusal(UNIT, settle.base, high)),)


def test_a_second_record_in_one_ballot_is_refused_and_the_first_is_written_and_acked_again() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    (order,) = seat.feed(BytesHeld(settle))
    assert isinstance(order, LogAck)
    other = replace(settle, record=_other_record(settle.record))
    assert seat.hear(table.opener(), other) == ()
    assert "two records" in seat.reasons[-1]
    assert seat.hear(table.opener(), settle) == (order,)  # a full disk may have refused it the first time


def test_a_record_of_the_spine_that_cites_one_and_one_of_another_unit_that_cites_none_are_not_acked() -> None:
    spine = made_spine()
    for table, cited, why in (
        (Table(3), spine.left.commit, "with a spine"),
        (Table(3, spine=spine.at(spine.left)), NO_SPINE, "without a spine"),
    ):
        acquaint(table)
        mute(table)
        opener = table.opener()
        (seat, *_) = table.others(opener)
        made = commit_on(table.genesis, table.live(), spine=cited)
        ballot = Ballot(0, opener.peer)
        assert seat.hear(opener, Settle(UNIT, table.genesis.commit, ballot, made.certificate.record, ())) == ()
        assert why in seat.reasons[-1]
        good = signed_record(table.genesis, table.live(), spine=spine.left.commit if cited == NO_SPINE else NO_SPINE)
        settle = Settle(UNIT, table.genesis.commit, ballot, encode_record(good), ())
        assert seat.hear(opener, settle) == (GatherBytes(settle),)


def test_a_record_is_settled_by_the_owner_of_its_ballot_only() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    (third,) = table.others(seat, table.opener())
    assert seat.hear(third, settle) == ()
    assert seat.hear(third, replace(settle, ballot=Ballot(0, third.peer))) == ()
    assert "belongs to the first of the base roster" in seat.reasons[-1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"outer": OuterStep("mean", 5.0, 0.0)}, "outer step"),
        ({"codec": "int8"}, "codec"),
        ({"result_codec": "int8"}, "codec fp32 and int8 for results"),
        ({"index": 9}, "index"),
        ({"next_target_tokens": 1}, "1 tokens for the next round; expected 300 to 300"),
        ({"next_target_tokens": 1 << 60}, "tokens for the next round"),
    ],
)
def test_a_record_that_does_not_follow_the_run_is_not_acked(change: dict[str, object], why: str) -> None:
    table = Table(3)
    seat, settle = _settled(table)
    bad = encode_record(replace(decode_record(settle.record), **change))
    higher = replace(settle, ballot=Ballot(4, settle.ballot.peer), record=bad)
    assert seat.hear(table.opener(), higher) == ()
    assert why in seat.reasons[-1]


def test_a_record_of_a_leader_with_an_older_release_is_refused_with_what_to_do() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    record = decode_record(settle.record)
    unsigned = tuple(replace(entry, seal=b"", attests=0) for entry in record.contributors)
    old = encode_record(replace(record, rules=0, contributors=unsigned, attestations=()))
    assert seat.hear(table.opener(), replace(settle, ballot=Ballot(4, settle.ballot.peer), record=old)) == ()
    assert "its leader runs an older release" in seat.reasons[-1]
    assert seat.reasons[-1].endswith("ask its owner to install this release")


@pytest.mark.parametrize(("tokens", "is_acked"), [(149, False), (150, True), (449, True), (450, False)])
def test_a_staggered_units_next_target_may_be_cut_or_drawn_out_by_a_half_and_by_no_more(
    tokens: int, is_acked: bool
) -> None:
    table = Table(3, stagger=Stagger(1, 4))
    seat, settle = _settled(table)
    record = encode_record(replace(decode_record(settle.record), next_target_tokens=tokens))
    seat.hear(table.opener(), replace(settle, ballot=Ballot(4, settle.ballot.peer), record=record))
    assert (f"{tokens} tokens for the next round; expected 150 to 449" in seat.reasons[-1]) is not is_acked


def test_a_record_over_another_number_of_chunks_is_not_acked() -> None:
    table = Table(3)
    acquaint(table)
    mute(table)
    opener = table.opener()
    (seat, *_) = table.others(opener)
    record = record_on(table.genesis, list(table.seats))
    slices = (replace(record.slices[0], stop_chunk=3),)
    settle = Settle(UNIT, table.genesis.commit, record.ballot, encode_record(replace(record, slices=slices)), ())
    assert seat.hear(opener, settle) == ()
    assert "over 3 chunks" in seat.reasons[-1]


def test_a_peer_that_takes_part_in_no_exchange_acks_as_well() -> None:
    table = Table(3)
    opener = table.opener()
    (seat, *_) = table.others(opener)
    table.drops = lambda sender, to, message: isinstance(message, Proposal) and to == seat.peer
    table.run_until(lambda: table.all_at(1), 40.0)
    assert seat.ordered(LogAck)


# --- promises -----------------------------------------------------------------------------------------------------------------


def test_a_promise_is_told_when_it_is_on_disk_and_names_the_acked_record() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    seat.feed(BytesHeld(settle))
    (asker,) = table.others(seat, table.opener())
    high = Ballot(7, asker.peer)
    assert seat.hear(asker, wanted(table, high)) == (LogPromise(settle.base, high),)
    assert seat.sent(Promise) == []
    (reported,) = seat.feed(PromiseLogged(settle.base, high))
    acked = AckedRecord(settle.ballot, settle.record)
    assert reported == Send((asker.peer,), Promise(UNIT, settle.base, high, acked))
    low = PromiseRequest(UNIT, settle.base, Ballot(3, asker.peer))
    assert seat.hear(asker, low) == (Send((asker.peer,), Refusal(UNIT, settle.base, high)),)


def test_a_ballot_is_promised_once_so_that_a_leader_who_lost_its_disk_cannot_use_it_twice() -> None:
    table = Table(3)
    acquaint(table)
    mute(table)
    seat, asker = table.live()[:2]
    base, ballot = table.genesis.commit, Ballot(1, asker.peer)
    assert seat.hear(asker, wanted(table, ballot)) == (LogPromise(base, ballot),)
    assert seat.hear(asker, wanted(table, ballot)) == (Send((asker.peer,), Refusal(UNIT, base, ballot)),)


def test_whom_we_promised_gets_the_time_to_propose_before_we_try_ourselves() -> None:
    table = Table(3)
    acquaint(table)
    mute(table)
    seat, asker = table.live()[:2]
    base, ballot = table.genesis.commit, Ballot(1, asker.peer)
    seat.hear(asker, wanted(table, ballot))
    seat.feed(PromiseLogged(base, ballot))
    assert seat.state.open.quiet_until_s == table.now_s + seat.state.config.suspect_after_s


def test_a_promise_that_a_higher_one_overtook_is_never_told() -> None:
    table = Table(3)
    acquaint(table)
    mute(table)
    seat, one, two = table.live()
    base, low, high = table.genesis.commit, Ballot(1, one.peer), Ballot(2, two.peer)
    seat.hear(one, wanted(table, low))
    seat.hear(two, wanted(table, high))
    assert seat.feed(PromiseLogged(base, low)) == ()
    (reported,) = seat.feed(PromiseLogged(base, high))
    assert reported == Send((two.peer,), Promise(UNIT, base, high))


def test_nobody_may_ask_for_a_promise_in_anothers_name_or_for_attempt_zero() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    (asker,) = table.others(seat, table.opener())
    assert seat.hear(asker, PromiseRequest(UNIT, settle.base, Ballot(2, settle.ballot.peer))) == ()
    assert seat.hear(asker, PromiseRequest(UNIT, settle.base, Ballot(0, asker.peer))) == ()


def test_votes_outlive_the_process() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    del table.perform
    seat.feed(BytesHeld(settle))
    (asker,) = table.others(seat, table.opener())
    high = Ballot(3, asker.peer)
    seat.hear(asker, wanted(table, high))
    table.restart(seat)
    assert seat.state.open.acked == AckedRecord(settle.ballot, settle.record)
    assert seat.state.open.promised == high
    assert seat.hear(table.opener(), settle) == (Send((settle.ballot.peer,), Refusal(UNIT, settle.base, high)),)


def test_a_disk_that_is_newer_than_its_place_in_the_roster_has_no_vote() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(1))
    head = max((s.head for s in table.live()), key=lambda link: link.index)
    seat, asker, *_ = (s for s in table.live() if s.head == head)
    table.drops = lambda sender, to, message: True
    chain = list(seat.disk.chain)
    table.restart(seat, loses_disk=True)
    seat.disk.chain = chain  # it fetched what is committed; its votes are lost
    seat.start()
    assert not seat.state.may_vote
    assert seat.hear(asker, PromiseRequest(UNIT, head.commit, Ballot(1, asker.peer))) == ()
    assert seat.state.open.promised is None
    record = record_on(head, list(table.seats), ballot=Ballot(1, asker.peer))
    settle = Settle(UNIT, head.commit, Ballot(1, asker.peer), encode_record(record), ())
    assert seat.hear(asker, settle) == ()
    assert "no vote on this base" in seat.reasons[-1]


def test_an_ack_of_a_lone_record_leaves_the_other_ack_as_it_is() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    seat.feed(BytesHeld(settle))
    (asker,) = table.others(seat, table.opener())
    seat.state = replace(seat.state, alone_since_s=table.now_s - 1000.0)
    ballot = Ballot(1, asker.peer)
    record = encode_record(signed_record(table.genesis, [seat, asker], lone=True, ballot=ballot))
    lone = Settle(UNIT, settle.base, Ballot(1, asker.peer), record, ())
    assert seat.hear(asker, lone) == (GatherBytes(lone),)
    (order,) = seat.feed(BytesHeld(lone))
    assert isinstance(order, LogAck)
    assert order.lone
    assert seat.state.open.acked == AckedRecord(settle.ballot, settle.record)
    assert seat.state.open.acked_lone == AckedRecord(lone.ballot, lone.record)


def test_a_lone_record_is_refused_while_a_quorum_was_in_reach_lately() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    (asker,) = table.others(seat, table.opener())
    record = encode_record(record_on(table.genesis, [seat.peer, asker.peer], lone=True))
    assert seat.hear(asker, Settle(UNIT, settle.base, Ballot(1, asker.peer), record, ())) == ()
    assert "there is a quorum to ask" in seat.reasons[-1]


# --- before a take-over -------------------------------------------------------------------------------------------------------


def _asked(table: Table) -> tuple[Seat, Seat, Seat]:
    """(voter, asker, opener), all acquainted; orders are recorded only."""
    acquaint(table)
    mute(table)
    opener = table.opener()
    voter, asker, *_ = table.others(opener)
    return voter, asker, opener


def _vote(actions: tuple[object, ...]) -> str:
    (send,) = actions
    assert isinstance(send, Send)
    assert isinstance(send.message, PreVote)
    return send.message.objection


def _question(table: Table, asker: Seat, waited_s: float = 2.0, attempt: int = 1) -> PreVoteRequest:
    return PreVoteRequest(UNIT, table.genesis.commit, Ballot(attempt, asker.peer), waited_s)


def test_a_voter_that_hears_the_opener_objects() -> None:
    table = Table(3)
    voter, asker, _ = _asked(table)
    assert "is alive" in _vote(voter.hear(asker, _question(table, asker)))


def test_a_voter_that_finds_the_opener_gone_agrees_and_promises_nothing_yet() -> None:
    table = Table(3)
    voter, asker, opener = _asked(table)
    voter.feed(PeerLost(opener.peer))
    assert _vote(voter.hear(asker, _question(table, asker))) == ""
    assert voter.state.open.promised is None


def test_a_leader_whose_attempts_on_a_base_came_to_nothing_leaves_the_next_ones_to_others() -> None:
    """A leader that proposes and never settles could lead for ever."""
    table = Table(3)
    leader = table.opener()
    voter, _ = table.others(leader)
    table.drops = lambda sender, to, message: isinstance(message, Settle | PreVote)
    table.run_until(lambda: voter.state.open.proposal is not None, 20.0)
    opened, at_s = voter.state.open, table.now_s
    for num_led, words in ((MOST_LED - 1, ""), (MOST_LED, f"it led {MOST_LED} attempts on this base")):
        leaders = {leader.peer: LeaderAttempts(num_led)}
        voter.state = replace(voter.state, open=replace(opened, leaders=leaders, promised=None, acked=None))
        found = _vote(voter.hear(leader, _question(table, leader)))
        assert words in found if words else "it led" not in found
    voter.state = replace(voter.state, open=replace(voter.state.open, proposal_at_s=at_s - 10_000.0))
    assert "it led" not in _vote(voter.hear(leader, _question(table, leader))), "others had their time"


def test_a_voter_that_is_not_sure_asks_the_opener_and_answers_what_came_of_it() -> None:
    table = Table(3)
    voter, asker, opener = _asked(table)
    table.wait(SUSPECT_AFTER_S + 1.0)
    (ping,) = voter.hear(asker, _question(table, asker))
    assert isinstance(ping, SendHeartbeat)
    assert ping.to == (opener.peer,)
    assert voter.sent(PreVote) == []
    table.wait(1.0)
    voter.hear(opener, heartbeat_of(opener))
    voter.feed(RoundTicked())
    (vote,) = voter.sent(PreVote)
    assert isinstance(vote, PreVote)
    assert "is alive" in vote.objection

    table.wait(10.0)
    voter.hear(asker, _question(table, asker))
    table.wait(voter.state.config.suspect_after_s)
    voter.feed(RoundTicked())
    agreed = voter.sent(PreVote)[-1]
    assert isinstance(agreed, PreVote)
    assert agreed.objection == ""


def test_a_live_opener_holds_up_nobody_once_the_voter_itself_waited_twice_as_long_as_a_suspicion_takes() -> None:
    table = Table(3)
    voter, asker, _ = _asked(table)
    for waited_s, objection in ((0.0, "is alive"), (OVERDUE_FACTOR * SUSPECT_AFTER_S, "")):
        opened = replace(voter.state.open, due_since_s=table.now_s - waited_s)
        voter.state = replace(voter.state, open=opened)
        found = _vote(voter.hear(asker, _question(table, asker, waited_s=1e9)))
        assert found.endswith(objection), "the asker's own word counts for nothing"
        assert bool(found) == bool(objection)


def test_an_opener_that_has_had_no_time_to_report_a_commit_is_not_taken_for_gone() -> None:
    table = Table(3)
    voter, asker, opener = _asked(table)
    before = replace(heartbeat_of(opener).heads[0], head=CommitId(b"before" + bytes(26)))
    voter.hear(opener, replace(heartbeat_of(opener), heads=(before,)))
    for since_s, words in ((0.0, "is alive"), (SUSPECT_AFTER_S, "")):
        voter.state = replace(voter.state, committed_at_s=table.now_s - since_s)
        found = _vote(voter.hear(asker, _question(table, asker, waited_s=1e9)))
        assert found.endswith(words)
        assert bool(found) == bool(words)


def test_an_opener_that_may_not_contribute_is_no_reason_to_wait() -> None:
    table = Table(3)
    voter, asker, opener = _asked(table)
    head = replace(heartbeat_of(opener).heads[0], can_contribute=False)
    voter.hear(opener, replace(heartbeat_of(opener), heads=(head,)))
    assert _vote(voter.hear(asker, _question(table, asker))) == ""


def test_a_running_attempt_is_a_reason_to_wait_until_it_has_had_its_time() -> None:
    table = Table(4)
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, Settle)
    table.run_until(lambda: all(seat.state.open.proposal is not None for seat in table.live()), 10.0)
    mute(table)
    voter, asker, *_ = table.others(opener)
    assert "is under way" in _vote(voter.hear(asker, _question(table, asker)))
    assert "leading attempt 0" in _vote(opener.hear(asker, _question(table, asker)))
    table.wait(100.0)
    voter.hear(opener, heartbeat_of(opener))
    assert _vote(voter.hear(asker, _question(table, asker))) == ""


def test_who_is_leading_or_applying_a_commit_objects_to_a_lone_attempt_as_well() -> None:
    table = Table(3)
    voter, asker, opener = _asked(table)
    voter.state = replace(voter.state, alone_since_s=table.now_s - 1000.0)
    voter.hear(opener, Committed(UNIT, commit_on(table.genesis, table.live()).certificate))
    assert voter.state.open.committing is not None
    assert "a commit is being applied" in _vote(voter.hear(asker, replace(_question(table, asker), lone=True)))


def test_a_ballot_below_a_promise_is_objected_to() -> None:
    table = Table(3)
    voter, asker, opener = _asked(table)
    voter.hear(opener, wanted(table, Ballot(5, opener.peer)))
    assert "attempt 5 is promised already" in _vote(voter.hear(asker, _question(table, asker)))


def test_a_question_in_anothers_name_is_not_answered() -> None:
    table = Table(3)
    voter, asker, opener = _asked(table)
    assert voter.hear(asker, replace(_question(table, asker), ballot=Ballot(1, opener.peer))) == ()


# --- goodbye ------------------------------------------------------------------------------------------------------------------


def test_who_acked_owes_the_bytes_while_their_leader_is_dead_or_had_no_time_to_be_noticed() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    now_s, noticed_s = table.now_s, table.now_s + 2 * NOTICED_WITHIN_S
    assert not is_owed_bytes(seat.state, now_s, now_s), "nothing is acked"
    (order,) = seat.feed(BytesHeld(settle))
    assert isinstance(order, LogAck)
    seat.feed(AckLogged(order.base, order.ballot, order.commit))
    assert is_owed_bytes(seat.state, now_s, now_s), "its leader may have died just now"
    assert not is_owed_bytes(seat.state, noticed_s, now_s), "its leader is there"
    seat.feed(PeerLost(settle.ballot.peer, now_s))
    assert is_owed_bytes(seat.state, noticed_s, now_s), "its leader is dead"
    (other,) = table.others(seat, table.opener())
    seat.feed(PeerLost(other.peer, now_s))
    assert not is_owed_bytes(seat.state, now_s, now_s), "nobody is there who needs them"


def test_a_goodbye_is_told_when_it_is_on_disk_and_carries_the_vote() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    seat.feed(BytesHeld(settle))
    acked = AckedRecord(settle.ballot, settle.record)
    leave = Leave(seat.member, UNIT, settle.base, settle.ballot, acked, version=LEAVE_VERSION)
    assert seat.feed(LeaveOrdered()) == (LogLeave(leave),)
    assert seat.feed(LeaveOrdered()) == ()
    (reported,) = seat.feed(LeaveLogged(leave))
    assert reported == Send(tuple(sorted(set(table.seats) - {seat.peer})), leave)


def test_who_does_not_know_its_votes_stays_in_the_electorate_when_it_leaves() -> None:
    """It may have been one of the quorum that decided this base: without it fewer could decide something else."""
    table = Table(3)
    seat = table.live()[0]
    seat.disk.promise(seat.head.commit, Ballot(LAST_ATTEMPT, seat.peer))
    table.restart(seat)
    assert seat.state.open.has_left
    (order,) = seat.feed(LeaveOrdered())
    assert isinstance(order, LogLeave)
    leaves = {seat.peer: order.leave}
    roster = table.genesis.roster
    assert electorate(roster, Ballot(7, roster[0]), leaves) == roster


def test_who_leaves_votes_on_nothing_any_more_also_after_a_restart() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    del table.perform
    asker, other = table.others(seat)
    assert seat.feed(LeaveOrdered())
    assert seat.feed(BytesHeld(settle)) == ()
    assert seat.hear(asker, PromiseRequest(UNIT, settle.base, Ballot(3, asker.peer))) == ()
    table.restart(seat)
    assert not seat.state.may_vote
    never = Refusal(UNIT, settle.base, Ballot(LAST_ATTEMPT, seat.peer))
    assert seat.hear(other, PromiseRequest(UNIT, settle.base, Ballot(3, other.peer))) == (Send((other.peer,), never),)
    settler = table.opener()
    assert not any(isinstance(order, GatherBytes) for order in seat.hear(settler, settle))
    assert "no vote on this base" in seat.reasons[-1]
