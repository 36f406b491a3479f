from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from protocol.ids import CommitId
from protocol.rounds.attempt import left_s
from protocol.rounds.events import ApartNoted, PeerLost, Progressed, PromiseLogged, RoundTicked
from protocol.rounds.leading import RANK_DELAY_S, expected_opener, overdue_s
from protocol.rounds.lineage.quorum import tie_holder
from protocol.rounds.messages.messages import (
    Ack,
    Committed,
    Leave,
    PreVote,
    PreVoteRequest,
    Promise,
    PromiseRequest,
    Proposal,
    Refusal,
    ResultReady,
    Settle,
)
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot
from protocol.rounds.messages.wire import encode_message
from protocol.rounds.orders import LogPromise, Send
from protocol.rounds.participants import most_left_s
from protocol.rounds.queries import has_vote, quorum_in_reach
from protocol.rounds.state import Leading
from protocol.rounds.voting import LEAVE_VERSION
from tests.protocol.rounds.round_table import RUN_ID, UNIT, Seat, Table, acquaint, heartbeat_of, mute


def _is_proposal(message: object, attempt: int) -> bool:
    return isinstance(message, Proposal) and message.ballot.attempt == attempt


def _asking(table: Table) -> tuple[Seat, Seat, PreVoteRequest]:
    """(who asks, the opener, what is asked): the opener of the first round is silent."""
    acquaint(table)
    mute(table)
    opener = table.opener()
    seat = table.others(opener)[0]
    for _ in range(40):
        table.now_s += 0.5
        for other in table.others(opener, seat):
            seat.hear(other, heartbeat_of(other))
        seat.feed(Progressed(1000, True))
        seat.feed(RoundTicked())
        asked = seat.sent(PreVoteRequest)
        if asked:
            assert isinstance(asked[0], PreVoteRequest)
            return seat, opener, asked[0]
    raise AssertionError(seat.reasons)


# --- attempt 0 ----------------------------------------------------------------------------------------------------------------


def test_the_first_opener_proposes_only_when_its_own_promise_is_on_disk() -> None:
    table = Table(3)
    acquaint(table)
    mute(table)
    opener = table.opener()
    base, ballot = table.genesis.commit, Ballot(0, opener.peer)
    orders = opener.feed(RoundTicked())
    assert LogPromise(base, ballot) in orders
    assert opener.sent(Proposal) == []
    (order,) = opener.feed(PromiseLogged(base, ballot))
    assert isinstance(order, Send)
    assert _is_proposal(order.message, 0)


def test_a_restarted_opener_does_not_make_a_second_attempt_under_the_ballot_of_its_first() -> None:
    table = Table(3)
    acquaint(table)
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, Proposal | Settle) and message.ballot.attempt == 0
    opener.feed(RoundTicked())
    table.restart(opener)
    table.run_until(lambda: table.all_at(1))
    assert [m for m in opener.sent(Proposal) if _is_proposal(m, 0)] == []
    record = opener.head.record
    assert record is not None
    assert record.ballot.attempt >= 1


def test_nobody_opens_while_it_may_not_contribute() -> None:
    table = Table(3)
    acquaint(table)
    opener = table.opener()
    opener.feed(Progressed(1000, False))
    opener.feed(RoundTicked())
    assert opener.ordered(LogPromise) == []


def test_a_round_with_fewer_than_the_least_members_is_put_off_and_it_is_said() -> None:
    table = Table(3, min_members=3)
    acquaint(table)
    (lost, *_) = table.others(table.opener())
    table.kill(lost)
    for seat in table.live():
        seat.tokens = 300
    table.run_for(30.0)
    assert all(seat.head.index == 0 for seat in table.live())
    assert any("of at least 3 members" in reason for seat in table.live() for reason in seat.reasons)


def _opens_after_s(num_behind: int, exchange_ms: int = 0, *, is_made_up: bool = False) -> float:
    """How long the opener waits, of two whose third one tells again and again that it stands so many commits back."""
    table = Table(3)
    acquaint(table)
    slow = table.others(table.opener())[0]
    heads = [heartbeat_of(slow).heads]
    for index in range(1, 4):
        table.run_until(lambda index=index: table.all_at(index))  # type: ignore[misc]
        heads.append(heartbeat_of(slow).heads)
    if is_made_up:
        heads = [tuple(replace(head, head=CommitId(b"?" * 32)) for head in reported) for reported in heads]
    opener = table.opener()
    slow, quick = table.others(opener)
    link = opener.state.link
    opener.state = replace(opener.state, link=replace(link, roster=(opener.peer,)), committed_at_s=table.now_s)
    opener.orders.clear()
    mute(table)
    begun_s = table.now_s
    while not opener.ordered(LogPromise) and table.now_s < begun_s + 50.0:
        table.now_s += 0.5
        old = replace(heartbeat_of(slow), heads=heads[3 - num_behind], exchange_ms=exchange_ms)
        opener.hear(slow, old)
        opener.hear(quick, heartbeat_of(quick))
        opener.feed(Progressed(1000, True))
        opener.feed(RoundTicked())
    return table.now_s - begun_s


def test_who_is_close_behind_is_waited_for_also_by_one_that_is_alone_in_the_roster() -> None:
    assert _opens_after_s(0) < 1.0
    assert 5.0 <= _opens_after_s(1) < 6.0
    assert 5.0 <= _opens_after_s(2) < 6.0


def test_nobody_waits_for_who_is_close_behind_on_a_lineage_that_is_not_ours() -> None:
    assert _opens_after_s(1, is_made_up=True) < 1.0


def test_a_follower_with_a_slow_line_gets_the_time_of_two_uploads() -> None:
    assert 20.0 <= _opens_after_s(1, exchange_ms=10_000) < 21.0


def test_who_is_far_behind_is_not_waited_for() -> None:
    assert _opens_after_s(3) < 1.0


# --- asking before a take-over ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_goodbye", [True, False], ids=["left", "reset"])
def test_nobody_waits_for_an_opener_that_is_gone(is_goodbye: bool) -> None:
    table = Table(3)
    acquaint(table)
    mute(table)
    opener = table.opener()
    others = table.others(opener)
    for seat in others:
        seat.feed(Progressed(2000, True))
        for other in others:
            if other is not seat:
                seat.hear(other, heartbeat_of(other))
        if is_goodbye:
            seat.hear(opener, Leave(opener.member, UNIT, opener.head.commit, version=LEAVE_VERSION))
        else:
            seat.feed(PeerLost(opener.peer))
    assert any(seat.sent(PreVoteRequest) for seat in others), "the first in the order asks at once"


def test_who_takes_over_asks_first_and_promises_only_when_a_quorum_agrees() -> None:
    table = Table(3)
    seat, opener, question = _asking(table)
    (third,) = table.others(seat, opener)
    assert seat.ordered(LogPromise) == []
    assert seat.state.open.promised is None
    agreed = PreVote(UNIT, question.base, question.ballot, "")
    assert seat.hear(third, agreed) == (LogPromise(question.base, question.ballot),)
    assert seat.state.open.promised == question.ballot


def test_an_objection_is_no_vote_and_without_votes_the_asker_stands_back() -> None:
    table = Table(3)
    seat, opener, question = _asking(table)
    (third,) = table.others(seat, opener)
    assert seat.hear(third, PreVote(UNIT, question.base, question.ballot, "the opener is alive")) == ()
    assert "objects: the opener is alive" in seat.reasons[-1]
    table.now_s += seat.state.config.promise_within_s
    seat.feed(RoundTicked())
    assert seat.ordered(LogPromise) == []
    assert seat.state.open.leading is None
    assert "too few find the opener gone" in seat.reasons[-1]


@pytest.mark.parametrize(("exchange_ms", "least_s"), [(0, 5.0), (10_000, 20.0)])
def test_nobody_takes_over_from_an_opener_that_still_applies_the_last_commit_for_two_of_its_uploads(
    exchange_ms: int, least_s: float
) -> None:
    table = Table(2)
    acquaint(table)
    before = {seat.peer: heartbeat_of(seat).heads for seat in table.live()}
    table.run_until(lambda: table.all_at(1))
    opener = table.opener()
    (other,) = table.others(opener)
    other.state = replace(other.state, committed_at_s=table.now_s)
    other.orders.clear()
    mute(table)
    begun_s = table.now_s
    while not other.sent(PreVoteRequest) and not other.ordered(LogPromise) and table.now_s < begun_s + 50.0:
        table.now_s += 0.5
        other.hear(opener, replace(heartbeat_of(opener), heads=before[opener.peer], exchange_ms=exchange_ms))
        other.feed(Progressed(1000, True))
        other.feed(RoundTicked())
    assert least_s <= table.now_s - begun_s < least_s + 5.0


def test_answers_to_another_question_are_no_votes() -> None:
    table = Table(3)
    seat, opener, question = _asking(table)
    (third,) = table.others(seat, opener)
    other = Ballot(question.ballot.attempt + 1, seat.peer)
    assert seat.hear(third, PreVote(UNIT, question.base, other, "")) == ()
    assert seat.hear(third, Promise(UNIT, question.base, question.ballot)) == ()
    assert seat.state.open.leading is not None
    assert seat.state.open.leading.stage == "asking"


def test_the_next_peer_takes_over_when_the_opener_was_dead_all_along() -> None:
    table = Table(3)
    for seat in table.live():
        seat.tokens = 150
    table.tick()
    dead = table.opener()
    table.kill(dead)
    table.run_until(lambda: table.all_at(1), 20.0)
    record = table.live()[0].head.record
    assert record is not None
    assert record.ballot.attempt >= 1
    assert dead.peer not in record.roster


def test_an_opener_that_answers_but_does_not_open_is_taken_over_after_twice_the_time() -> None:
    table = Table(3)
    opener = table.opener()
    table.drops = lambda sender, to, message: _is_proposal(message, 0)
    start_s = table.now_s
    table.run_until(lambda: table.all_at(1), 60.0)
    record = opener.head.record
    assert record is not None
    assert record.ballot.attempt >= 1
    assert table.now_s - start_s >= 2 * opener.state.config.suspect_after_s


# --- promises -----------------------------------------------------------------------------------------------------------------


def _promising(table: Table) -> tuple[Seat, Seat, Ballot]:
    """(who takes over, the third, ballot): two of three agree, and our own promise is on disk."""
    seat, opener, question = _asking(table)
    third = next(other for other in table.others(seat, opener) if other.peer in table.genesis.roster)
    seat.hear(third, PreVote(UNIT, question.base, question.ballot, ""))
    orders = seat.feed(PromiseLogged(question.base, question.ballot))
    (send, own) = orders
    assert isinstance(send, Send)
    consent = third.sealed(encode_message(PreVote(UNIT, question.base, question.ballot, "")))
    assert send.message == PromiseRequest(UNIT, question.base, question.ballot, (consent,))
    assert set(send.to) == {opener.peer, third.peer}
    mine = Promise(UNIT, question.base, question.ballot)
    assert own == Send((seat.peer,), mine), "to ourselves, as everybody's, for others want to see it"
    seat.hear(seat, mine)
    return seat, third, question.ballot


def test_with_a_quorum_of_promises_and_nothing_acked_a_new_proposal_is_made() -> None:
    table = Table(3)
    seat, third, ballot = _promising(table)
    (send,) = seat.hear(third, Promise(UNIT, table.genesis.commit, ballot))
    assert isinstance(send, Send)
    assert _is_proposal(send.message, ballot.attempt)


def test_promises_of_peers_outside_the_base_roster_make_no_quorum() -> None:
    table = Table(4, num_founders=3)
    seat, third, ballot = _promising(table)
    joiner = next(seat for seat in table.live() if seat.peer not in table.genesis.roster)
    assert seat.hear(joiner, Promise(UNIT, table.genesis.commit, ballot)) == ()
    assert seat.hear(third, Promise(UNIT, table.genesis.commit, ballot))


def test_a_higher_ballot_of_so_many_that_no_quorum_is_left_makes_a_leader_stand_back_and_start_above_it() -> None:
    table = Table(3)
    seat, third, _ = _promising(table)
    higher = Ballot(7, third.peer)
    seat.hear(third, Refusal(UNIT, table.genesis.commit, higher))
    assert seat.state.open.leading is not None, "one of three says so, and the other two are a quorum"
    (other,) = table.others(seat, third)
    seat.hear(other, Refusal(UNIT, table.genesis.commit, higher))
    assert seat.state.open.leading is None
    assert "came first" in seat.reasons[-1]
    assert seat.state.open.quiet_until_s > table.now_s
    table.now_s += 30.0
    for _ in range(60):
        table.now_s += 0.5
        seat.hear(third, heartbeat_of(third))
        seat.feed(RoundTicked())
    assert max(m.ballot.attempt for m in seat.sent(PreVoteRequest) if isinstance(m, PreVoteRequest)) == 8


def test_who_says_that_it_has_no_vote_on_the_base_is_counted_on_no_longer() -> None:
    table = Table(3)
    seat, _, ballot = _promising(table)
    others = [other for other in table.live() if other is not seat]
    for other in others:
        assert has_vote(seat.state, other.peer)
        seat.hear(other, Refusal(UNIT, table.genesis.commit, Ballot(LAST_ATTEMPT, other.peer)))
        assert not has_vote(seat.state, other.peer)
    assert seat.state.open.leading is not None
    assert seat.state.open.highest_attempt == ballot.attempt
    assert not quorum_in_reach(seat.state, ballot, table.now_s)


def test_a_refusal_of_a_lower_ballot_than_ours_is_no_reason_to_stand_back() -> None:
    table = Table(3)
    seat, third, ballot = _promising(table)
    seat.hear(third, Refusal(UNIT, table.genesis.commit, Ballot(0, third.peer)))
    assert seat.state.open.leading is not None
    assert seat.state.open.leading.ballot == ballot


def test_a_successor_finishes_an_acked_record_byte_for_byte() -> None:
    table = Table(3)
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, Ack | Committed) and opener.is_up
    table.run_until(lambda: all(seat.state.open.acked is not None for seat in table.live()))
    acked = {seat.state.open.acked.record for seat in table.live() if seat.state.open.acked}
    table.kill(opener)
    table.run_until(lambda: table.all_at(1))
    assert len(acked) == 1
    assert {seat.certificates[0].record for seat in table.live()} == acked


def test_the_round_goes_on_when_the_opener_dies_after_its_proposal() -> None:
    table = Table(4)
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, ResultReady) and opener.is_up
    table.run_until(lambda: any(s.state.open.proposal is not None for s in table.live()))
    table.kill(opener)
    table.run_until(lambda: table.all_at(1))
    assert len({seat.head.commit for seat in table.live()}) == 1


def test_a_lost_settle_is_made_up_for_by_a_later_attempt() -> None:
    table = Table(3)
    table.drops = lambda sender, to, message: isinstance(message, Settle) and message.ballot.attempt == 0
    table.run_until(lambda: table.all_at(1))
    assert len({seat.head.commit for seat in table.live()}) == 1


@pytest.mark.parametrize("num_peers", [3, 4, 5])
def test_whoever_leads_next_is_expected_by_all_alike(num_peers: int) -> None:
    table = Table(num_peers)
    table.run_until(lambda: table.all_at(1))
    head = max((seat.head for seat in table.live()), key=lambda link: link.index)
    at_head = [seat for seat in table.live() if seat.head == head and seat.state.open.proposal is None]
    assert len({expected_opener(seat.state) for seat in at_head}) == 1


# --- without a quorum ---------------------------------------------------------------------------------------------------------


def test_without_a_quorum_nothing_is_committed_until_patience_is_over_and_then_alone() -> None:
    table = Table(3, longest_interval_s=20.0)
    table.tick()
    alone = table.live()[0]
    table.split(alone)
    alone.tokens = 300
    table.run_for(alone.state.config.lone_patience_s - 5.0)
    assert alone.head.index == 0
    assert "training goes on" in alone.reasons[-1]
    table.run_until(lambda: alone.head.index == 1, 60.0)
    assert alone.head.is_lone
    assert alone.head.roster == (alone.peer,)
    table.run_until(lambda: alone.head.index == 2, 10.0)
    assert not alone.head.is_lone


def test_a_peer_that_others_at_work_do_not_hear_never_commits_alone_until_it_is_alone_in_truth() -> None:
    table = Table(3, longest_interval_s=20.0)
    table.tick()
    alone = table.live()[0]
    table.split(alone)
    alone.tokens = 300
    alone.feed(ApartNoted(True))
    table.run_for(3 * alone.state.config.lone_patience_s)
    assert alone.head.index == 0
    assert "training goes on" in alone.reasons[-1]
    alone.feed(ApartNoted(False))
    table.run_until(lambda: alone.head.index == 1, 60.0)
    assert alone.head.is_lone


def test_a_lone_record_waits_for_the_ack_of_everybody_at_hand() -> None:
    table = Table(5, longest_interval_s=20.0)
    table.tick()
    one, two = table.live()[:2]
    one.tokens = two.tokens = 300
    table.split(one, two)
    table.drops = lambda sender, to, message: isinstance(message, Ack) and sender != to
    table.run_until(lambda: bool(one.sent(Settle) or two.sent(Settle)), 120.0)
    table.run_for(5.0)
    assert (one.head.index, two.head.index) == (0, 0)
    table.drops = lambda sender, to, message: False
    table.run_until(lambda: one.head.index >= 1 and two.head.index >= 1, 120.0)
    lone = one.disk.chain[0][0]
    assert lone.is_lone
    assert set(lone.roster) == {one.peer, two.peer}
    assert one.certificates[0].num_acks == 2


def test_who_still_has_a_quorum_refuses_to_go_on_alone() -> None:
    table = Table(3)
    acquaint(table)
    mute(table)
    seat, other = table.live()[:2]
    (answer,) = seat.hear(other, PreVoteRequest(UNIT, table.genesis.commit, Ballot(1, other.peer), 100.0, lone=True))
    assert isinstance(answer, Send)
    assert isinstance(answer.message, PreVote)
    assert "in reach lately" in answer.message.objection


def test_when_all_who_are_missing_refuse_connections_the_wait_is_short() -> None:
    table = Table(3)
    table.tick()
    alone, *gone = table.live()
    for seat in gone:
        table.kill(seat)
        alone.feed(PeerLost(seat.peer))
    alone.tokens = 300
    table.run_until(lambda: alone.head.index == 1, 25.0)
    assert alone.head.is_lone


def test_half_of_an_even_roster_goes_on_at_once_where_the_tie_holder_is() -> None:
    table = Table(4, longest_interval_s=30.0)
    table.run_until(lambda: table.all_at(1))
    holder = table.seats[tie_holder(RUN_ID, table.genesis.roster)]
    mate, *rest = table.others(holder)
    for seat in table.live():
        seat.tokens = 150
    before = max(seat.head.index for seat in table.live())
    table.split(holder, mate)
    table.run_until(lambda: holder.head.index >= before + 1 and mate.head.index >= before + 1, 30.0)
    assert not any(link.is_lone for link, _ in holder.disk.chain)
    assert all(seat.head.index <= before for seat in rest)


def _took_over_after_s(num_rounds: int) -> float:
    """From the freeze of a leader in mid-exchange to the next proposal, in the round after so many."""
    table = Table(4)
    table.run_until(partial(table.all_at, num_rounds))
    leader = table.opener()
    table.gathers = False
    table.run_until(lambda: _is_under_way(table, num_rounds), 30.0)
    table.freeze(leader)
    frozen_s = table.now_s
    table.run_until(
        lambda: any(_is_proposal(sent, 1) for seat in table.others(leader) for sent in seat.sent(Proposal)), 30.0
    )
    return table.now_s - frozen_s


def _is_under_way(table: Table, num_rounds: int) -> bool:
    return all(seat.state.open.proposal is not None and seat.head.index == num_rounds for seat in table.live())


def test_a_frozen_leader_has_no_turn_before_those_who_take_over_from_it() -> None:
    """It was heard a moment ago: after the second of these rounds the draw has it first again, and all would wait for its turn."""
    assert _took_over_after_s(9) == _took_over_after_s(0)


# --- the leader's word on its attempt -----------------------------------------------------------------------------------------


def _with_a_leader_that_gives_more_time(table: Table, settle_s: float) -> Seat:
    """The opener settled a record that nobody's ack reaches, and gives it longer than the others reckon with."""
    acquaint(table)
    opener = table.opener()
    opener.reconfigure(settle_within_s=settle_s)
    table.drops = lambda sender, to, message: isinstance(message, Ack)
    table.run_until(lambda: bool(opener.sent(Settle)), 10.0)
    return opener


def test_followers_give_an_attempt_the_time_that_its_leader_gives_it() -> None:
    table = Table(4, longest_interval_s=600.0)
    opener = _with_a_leader_that_gives_more_time(table, 200.0)
    reckoned_s = max(overdue_s(seat.state) for seat in table.others(opener))
    assert reckoned_s < 100.0
    table.run_for(reckoned_s + 60.0)
    followers = table.others(opener)
    assert any(seat.sent(PreVoteRequest) for seat in followers), "they ask once"
    assert [seat.ordered(LogPromise) for seat in followers] == [[]] * 3
    assert opener.state.open.leading is not None
    questions = [seat.sent(PreVoteRequest) for seat in followers]
    table.run_for(20.0)
    assert [seat.sent(PreVoteRequest) for seat in followers] == questions, "and do not ask again before it is over"
    table.drops = lambda sender, to, message: False
    table.run_until(lambda: table.all_at(1), 300.0)


def test_a_leader_that_dies_after_its_word_is_taken_over_as_any_other() -> None:
    table = Table(4, longest_interval_s=600.0)
    opener = _with_a_leader_that_gives_more_time(table, 500.0)
    followers = table.others(opener)
    table.run_until(lambda: any(seat.state.open.given_s > 0.0 for seat in followers), 100.0)
    table.drops = lambda sender, to, message: False
    table.kill(opener)
    table.run_until(lambda: table.all_at(1), 30.0)


def test_a_leader_that_answers_heartbeats_and_no_question_is_not_waited_for() -> None:
    table = Table(4, longest_interval_s=600.0)
    opener = _with_a_leader_that_gives_more_time(table, 1000.0)
    table.drops = lambda sender, to, message: isinstance(message, PreVoteRequest | Ack) and opener.peer in (sender, to)
    followers = table.others(opener)
    asked_s = max(overdue_s(seat.state) for seat in followers) + 3 * RANK_DELAY_S
    begun_s = table.now_s
    table.run_until(lambda: any(seat.sent(Proposal) for seat in followers), 150.0)
    assert table.now_s - begun_s < asked_s + 2 * opener.state.config.promise_within_s


def test_no_leader_is_believed_longer_than_an_honest_one_could_take() -> None:
    table = Table(4, longest_interval_s=600.0)
    opener = _with_a_leader_that_gives_more_time(table, 500.0)
    asker = table.others(opener)[0]
    table.run_until(lambda: bool(asker.sent(PreVoteRequest)), 100.0)
    mute(table)
    (question, *_) = asker.sent(PreVoteRequest)
    assert isinstance(question, PreVoteRequest)
    waiting = Leading(question.ballot, "asking", table.now_s + 4.0)
    asker.state = replace(asker.state, open=replace(asker.state.open, leading=waiting, given_s=0.0))
    word = PreVote(UNIT, question.base, question.ballot, "leading attempt 0", leads_s=1e6)
    asker.hear(opener, word)
    proposal = asker.state.open.proposal
    assert proposal is not None
    assert 0.0 < asker.state.open.given_s <= most_left_s(asker.state, proposal)
    assert asker.state.open.leading is None


def test_a_leader_knows_of_its_own_attempt_how_much_longer_it_gives_it() -> None:
    table = Table(4, longest_interval_s=600.0)
    opener = _with_a_leader_that_gives_more_time(table, 200.0)
    left = left_s(opener.state, table.now_s)
    assert 190.0 < left <= 200.0
    table.run_for(50.0)
    assert left_s(opener.state, table.now_s) == pytest.approx(left - 50.0)
    assert left_s(table.others(opener)[0].state, table.now_s) == 0.0
