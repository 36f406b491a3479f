from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from protocol.ids import CommitId
from protocol.rounds.events import LeaveOrdered, PeerLost, PeersAnswered, Progressed, RoundTicked
from protocol.rounds.messages.messages import Heartbeat, Leave, Promise, Proposal, ResultReady
from protocol.rounds.messages.record import Ballot, CommitRecord, Omission, OmissionCode
from protocol.rounds.orders import LogLeave, PrepareContribution, SendHeartbeat
from protocol.rounds.participants import (
    LEAST_FOLLOWER_S,
    NUM_ROUNDS_DOUBTED,
    NUM_ROUNDS_IMPATIENT,
    ask_left_out,
    attempt_s,
    brought_before,
    carriers,
    doubting,
    doubting_leader,
    is_doubted,
    proposed_within_s,
    reduce_within_s,
    takes_part,
    waiting_for,
    who_is_late,
)
from protocol.rounds.peer_survey import with_views
from protocol.rounds.queries import caught_up
from protocol.rounds.schedule.liveness_timing import SUSPECT_AFTER_S
from protocol.rounds.state import Leading, PeerView, RoundState, SignedLeave
from protocol.rounds.voting import LEAVE_VERSION
from tests.protocol.rounds.made_commits import signed_record
from tests.protocol.rounds.round_table import UNIT, Seat, Table, acquaint, first_proposal, heartbeat_of


def _next_proposal(table: Table, before: Seat) -> Proposal:
    """Of whoever leads after that one."""
    table.run_until(lambda: any(seat.sent(Proposal) for seat in table.others(before)))
    (message,) = [seat.sent(Proposal)[-1] for seat in table.others(before) if seat.sent(Proposal)]
    assert isinstance(message, Proposal)
    return message


def _opened(table: Table, *, with_results: bool) -> Seat:
    """The leader of an attempt that lacks the others' results, so that it does not settle; they have their own, or none but its."""
    opener = table.opener()
    table.drops = lambda sender, to, message: (
        isinstance(message, ResultReady) and sender != opener.peer and (to == opener.peer or not with_results)
    )
    table.run_until(lambda: bool(opener.sent(Proposal)))
    table.tick()
    return opener


def test_a_leader_that_is_killed_once_it_has_brought_all_counts_in_the_next_attempt_and_sums_nothing_there() -> None:
    table = Table(4)
    opener = _opened(table, with_results=True)
    table.kill(opener)
    proposal = _next_proposal(table, opener)
    assert {member.peer for member in proposal.members} == set(table.seats)
    assert {part.reducer for part in proposal.slices} == {seat.peer for seat in table.live()}
    table.drops = lambda sender, to, message: False
    table.run_until(lambda: table.all_at(1))
    assert all(opener.peer not in seat.head.roster for seat in table.live())


def test_a_leader_that_is_killed_before_any_result_is_named_again_since_others_may_have_what_it_brought() -> None:
    table = Table(4)
    opener = _opened(table, with_results=False)
    table.kill(opener)
    proposal = _next_proposal(table, opener)
    assert proposal.member(opener.peer) == opener.member
    table.drops = lambda sender, to, message: False
    table.run_until(lambda: table.all_at(1))
    records = [seat.head.record for seat in table.live()]
    assert all(record is not None and record.contributor(opener.peer) is None for record in records), "nobody has it"


@pytest.mark.parametrize("has_brought", [False, True])
def test_a_leader_that_falls_silent_is_named_again_only_where_our_own_result_counts_it(has_brought: bool) -> None:
    table = Table(4)
    opener = _opened(table, with_results=has_brought)
    table.freeze(opener)
    proposal = _next_proposal(table, opener)
    assert proposal.member(opener.peer) == (opener.member if has_brought else None)


def test_who_is_back_in_another_process_is_named_as_that() -> None:
    table = Table(4)
    opener = _opened(table, with_results=True)
    table.kill(opener)
    table.tick()
    table.restart(opener)
    proposal = _next_proposal(table, opener)
    assert proposal.member(opener.peer) in (opener.member, None)


def test_no_more_are_named_than_a_round_may_have_though_they_had_brought_all() -> None:
    table = Table(5, max_members=4)
    opener = _opened(table, with_results=True)
    (first,) = opener.sent(Proposal)
    assert isinstance(first, Proposal)
    assert len(first.members) == 4
    table.kill(opener)
    assert len(_next_proposal(table, opener).members) == 4


# --- who stands at our base though its last heartbeat said otherwise ----------------------------------------------------------


def _stale() -> tuple[Table, Seat, Seat]:
    """(table, a member of round 2, another of whom it heard before the first commit only)."""
    table = Table(4)
    table.run_until(lambda: table.all_at(1))
    opener = table.opener()
    seat, other = table.others(opener)[:2]
    table.drops = lambda sender, to, message: isinstance(message, Heartbeat | ResultReady)
    table.run_until(lambda: bool([p for p in opener.sent(Proposal) if isinstance(p, Proposal) and p.index == 2]))
    view = seat.state.peers[other.peer]
    assert view.head is not None
    old = replace(view.head, head=table.genesis.commit, index=0, tokens_ready=7)
    seat.state = with_views(seat.state, {other.peer: replace(view, head=old)})
    return table, seat, other


def _is_at_base(seat: Seat, other: Seat) -> bool:
    head = seat.state.peers[other.peer].head
    assert head is not None
    is_here = head.head == seat.head.commit
    assert (head.index, head.tokens_ready) == ((1, 0) if is_here else (0, 7))
    return is_here


def test_a_member_that_brings_its_contribution_stands_at_the_base_of_the_round() -> None:
    _, seat, other = _stale()
    seat.feed(RoundTicked())
    assert not _is_at_base(seat, other)
    seat.feed(RoundTicked(bringing=(other.peer,)))
    assert _is_at_base(seat, other)
    assert other.peer in {view.peer for view in caught_up(seat.state, seat.table.now_s)}


def test_a_member_that_promises_stands_at_the_base_of_the_round() -> None:
    _, seat, other = _stale()
    ballot = Ballot(1, seat.peer)
    leading = Leading(ballot, "promising", 1e9, is_promised=True)
    seat.state = replace(seat.state, open=replace(seat.state.open, leading=leading))
    seat.hear(other, Promise(UNIT, seat.head.commit, ballot))
    assert _is_at_base(seat, other)


@pytest.mark.parametrize("can_contribute", [False, True])
def test_who_promises_before_any_proposal_came_stands_at_the_base_and_can_do_what_it_said(can_contribute: bool) -> None:
    """The opener was killed before it proposed."""
    _, seat, other = _stale()
    ballot = Ballot(1, seat.peer)
    view = seat.state.peers[other.peer]
    assert view.head is not None
    reported = replace(view, head=replace(view.head, can_contribute=can_contribute))
    seat.state = with_views(seat.state, {other.peer: reported})
    leading = Leading(ballot, "promising", 1e9, is_promised=True)
    seat.state = replace(seat.state, open=replace(seat.state.open, proposal=None, leading=leading))
    seat.hear(other, Promise(UNIT, seat.head.commit, ballot))
    assert _is_at_base(seat, other)
    head = seat.state.peers[other.peer].head
    assert head is not None
    assert head.can_contribute == can_contribute


def test_another_process_of_a_member_is_not_taken_to_stand_where_that_stood() -> None:
    _, seat, other = _stale()
    view = seat.state.peers[other.peer]
    assert view.member is not None
    restarted = replace(view.member, session=view.member.session + 1)
    seat.state = with_views(seat.state, {other.peer: replace(view, member=restarted)})
    assert not _is_at_base_after_bringing(seat, other)


def test_who_is_no_member_of_the_open_round_is_not_taken_to_stand_at_its_base() -> None:
    _, seat, other = _stale()
    proposal = seat.state.open.proposal
    assert proposal is not None
    without = replace(proposal, members=tuple(member for member in proposal.members if member.peer != other.peer))
    seat.state = replace(seat.state, open=replace(seat.state.open, proposal=without))
    assert not _is_at_base_after_bringing(seat, other)


def _is_at_base_after_bringing(seat: Seat, other: Seat) -> bool:
    seat.feed(RoundTicked(bringing=(other.peer,)))
    return _is_at_base(seat, other)


def test_a_leader_killed_short_after_a_commit_is_followed_by_one_attempt_with_slices_for_all_survivors() -> None:
    """Of whom nothing was heard since the commit but what they brought and promised."""
    table, _, _ = _stale()
    opener = table.opener()
    for one in table.others(opener):
        for other in table.others(opener, one):
            view = one.state.peers[other.peer]
            assert view.head is not None
            old = replace(view, head=replace(view.head, head=table.genesis.commit, index=0))
            one.state = with_views(one.state, {other.peer: old})
            one.feed(RoundTicked(bringing=(other.peer,)))
    table.kill(opener)

    def proposed() -> list[Proposal]:
        sent = [message for one in table.live() for message in one.sent(Proposal) if isinstance(message, Proposal)]
        return [proposal for proposal in sent if proposal.index == 2]

    table.run_until(lambda: bool(proposed()))
    (proposal,) = proposed()
    assert proposal.ballot.attempt == 1
    assert {part.reducer for part in proposal.slices} == {one.peer for one in table.live()}


def _patience_s(seat: Seat, *, at_index: int, exchange_s: float) -> float:
    """How long this seat waits for the only peer that is behind, after a round with such an exchange."""
    link = replace(seat.state.link, index=at_index)
    committed_s = seat.table.now_s
    state = replace(seat.state, link=link, committed_at_s=committed_s, proposed_at_s=committed_s - exchange_s)
    views = {
        peer: replace(view, heard_at_s=committed_s + 100.0, head=replace(view.head, index=at_index - 1))
        for peer, view in state.peers.items()
        if view.head is not None
    }
    state = with_views(state, views)
    now_s = committed_s
    while (late := who_is_late(state, now_s)) is not None:
        state = waiting_for(state, late, now_s)
        now_s += 0.5
    seat.state = replace(seat.state, barred=state.barred)
    return now_s - committed_s


def test_who_reports_a_slow_line_is_waited_for_on_its_word_once_in_many_rounds_and_else_as_the_last_exchange_shows() -> (
    None
):
    table = Table(2, longest_interval_s=60.0)
    table.run_until(lambda: table.all_at(2))
    seat, slow = table.live()
    parent = seat.head.parent
    head = replace(heartbeat_of(slow).heads[0], head=parent, index=seat.head.index - 1)
    seat.hear(slow, replace(heartbeat_of(slow), heads=(head,), exchange_ms=40_000))
    assert _patience_s(seat, at_index=100, exchange_s=1.0) == 60.0
    assert _patience_s(seat, at_index=101, exchange_s=1.0) == LEAST_FOLLOWER_S
    assert _patience_s(seat, at_index=102, exchange_s=20.0) == 40.0, "others were as slow in it, or it was counted"
    assert _patience_s(seat, at_index=100 + NUM_ROUNDS_IMPATIENT - 1, exchange_s=1.0) == LEAST_FOLLOWER_S
    assert _patience_s(seat, at_index=100 + NUM_ROUNDS_IMPATIENT, exchange_s=1.0) == 60.0


@pytest.mark.parametrize(("max_members", "is_waited_for"), [(5, False), (6, True)])
def test_a_round_that_is_full_waits_for_voters_alone(max_members: int, is_waited_for: bool) -> None:
    table = Table(6, num_founders=3, max_members=max_members)
    table.run_until(lambda: table.all_at(1))
    seat = table.opener()
    late = next(other for other in table.others(seat) if other.peer not in seat.state.link.roster or is_waited_for)
    view = seat.state.peers[late.peer]
    assert view.head is not None
    behind = replace(view, head=replace(view.head, head=table.genesis.commit, index=0))
    state = with_views(seat.state, {late.peer: behind})
    now_s = state.committed_at_s + state.config.suspect_after_s + 0.1
    assert (who_is_late(state, now_s) == late.peer) == is_waited_for


# --- how long they are waited for


def _exchanging(claim_s: float, others_s: float = 3.0) -> tuple[Table, Seat, Seat, RoundState]:
    """A seat in an exchange with three others, one of which says that its upload takes `claim_s`."""
    table = Table(4, longest_interval_s=60.0)
    acquaint(table)
    seat = table.others(table.opener())[0]
    slow = table.others(seat, table.opener())[0]
    proposal: Proposal = first_proposal(table)
    seat.hear(table.opener(), proposal)
    for other in table.others(seat):
        claim = claim_s if other is slow else others_s
        seat.hear(other, replace(heartbeat_of(other), exchange_ms=round(claim * 1000)))
    return table, seat, slow, replace(seat.state, exchange_s=others_s)


def _left_out(table: Table, slow: Seat, code: OmissionCode = OmissionCode.LATE) -> CommitRecord:
    record = signed_record(table.genesis, [seat for seat in table.live() if seat is not slow])
    omitted = (Omission(slow.peer, "", code),)
    return replace(record, slices=tuple(replace(part, omitted=omitted) for part in record.slices))


def _views(state: RoundState) -> tuple[PeerView, ...]:
    return tuple(state.peers.values())


def test_a_member_that_had_the_time_it_asked_for_and_brought_nothing_is_not_waited_for_on_its_word_for_a_while() -> (
    None
):
    table, _, slow, state = _exchanging(50.0)
    assert proposed_within_s(state, _views(state)) == 60.0
    doubtful = doubting(state, _left_out(table, slow), table.now_s + 50.0)
    assert is_doubted(doubtful, slow.peer)
    assert proposed_within_s(doubtful, _views(doubtful)) == 6.0
    assert reduce_within_s(doubtful) == reduce_within_s(replace(doubtful, peers=type(state.peers)({})))
    later = replace(doubtful, link=replace(state.link, index=NUM_ROUNDS_DOUBTED))
    assert proposed_within_s(later, _views(later)) == 60.0


@pytest.mark.parametrize(
    ("claim_s", "waited_s", "code"),
    [
        (50.0, 40.0, OmissionCode.LATE),  # its time was not over
        (10.0, 50.0, OmissionCode.LATE),  # it asks for little more than the others
        (50.0, 50.0, OmissionCode.NOTHING),  # it said so at once
    ],
)
def test_a_thin_line_is_believed_as_long_as_its_word_may_be_true(
    claim_s: float, waited_s: float, code: OmissionCode
) -> None:
    table, _, slow, state = _exchanging(claim_s)
    assert doubting(state, _left_out(table, slow, code), table.now_s + waited_s) is state
    counted = signed_record(table.genesis, table.live())
    assert doubting(state, counted, table.now_s + 100.0) is state


def test_a_leader_whose_attempt_took_far_too_long_and_came_to_nothing_has_the_usual_time_from_then_on() -> None:
    table, seat, slow, state = _exchanging(3.0)
    proposal = state.open.proposal
    assert proposal is not None
    proposal = replace(proposal, reduce_within_s=60.0)
    state = replace(state, open=replace(state.open, proposal=proposal))
    assert attempt_s(state, proposal) > 100.0
    assert doubting_leader(state, slow.peer, table.now_s + 5.0) is state, "it may have died"
    assert doubting_leader(state, proposal.ballot.peer, table.now_s + 500.0) is state, "it tries again itself"
    doubtful = doubting_leader(state, slow.peer, table.now_s + 120.0)
    assert is_doubted(doubtful, proposal.ballot.peer)
    assert attempt_s(doubtful, proposal) < 30.0
    assert not is_doubted(doubtful, seat.peer)


# --- a peer that leaves before the round --------------------------------------------------------------------------------------


def _leave(leaver: Seat, carrier: Seat | None) -> Leave:
    return Leave(
        leaver.member,
        UNIT,
        leaver.head.commit,
        carrier=None if carrier is None else carrier.member,
        version=LEAVE_VERSION,
    )


def _told_of_a_leaver(*, carries: bool = True, num_founders: int | None = None) -> tuple[Table, Seat, Seat]:
    """A table of four, its opener, and a peer that left before the round, with the opener as its carrier."""
    table = Table(4, num_founders=num_founders)
    acquaint(table)
    opener = table.opener()
    leaver = next(
        seat for seat in reversed(table.others(opener)) if num_founders is None or seat.peer not in seat.head.roster
    )
    table.kill(leaver)
    for seat in table.live():
        seat.hear(leaver, _leave(leaver, opener if carries else None))
    return table, opener, leaver


def _first_proposal_of(table: Table, opener: Seat) -> Proposal:
    table.run_until(lambda: bool(opener.sent(Proposal)), 120.0)
    (proposal, *_) = opener.sent(Proposal)
    assert isinstance(proposal, Proposal)
    return proposal


@pytest.mark.parametrize("carries", [True, False])
def test_a_leaver_is_a_member_of_the_next_round_if_a_peer_that_is_here_carries_its_contribution(carries: bool) -> None:
    table, opener, leaver = _told_of_a_leaver(carries=carries)
    proposal = _first_proposal_of(table, opener)
    assert proposal.member(leaver.peer) == (leaver.member if carries else None)
    assert leaver.peer not in {part.reducer for part in proposal.slices}


def test_a_carrier_that_came_back_in_another_process_carries_nothing() -> None:
    table, opener, leaver = _told_of_a_leaver()
    carrier = table.others(opener)[0]
    state = opener.state
    leaves = {leaver.peer: SignedLeave(_leave(leaver, carrier), b"")}
    state = replace(state, open=replace(state.open, leaves=MappingProxyType(leaves)))
    led = Leading(Ballot(0, opener.peer), "collecting", 0.0)
    here = {seat.peer: seat.member for seat in table.live()}
    assert brought_before(state, led, here) == {leaver.peer: leaver.member}
    here[carrier.peer] = replace(carrier.member, session=carrier.member.session + 1)
    assert brought_before(state, led, here) == {}
    assert brought_before(state, replace(led, lone_voters=(opener.peer,)), here) == {}, (
        "a lone round asks all of its members"
    )


def test_a_leaver_that_has_come_back_takes_part_as_its_new_process() -> None:
    table, opener, leaver = _told_of_a_leaver()
    table.restart(leaver)
    leaver.feed(Progressed(100, True))
    opener.hear(leaver, heartbeat_of(leaver))
    proposal = _first_proposal_of(table, opener)
    assert proposal.member(leaver.peer) == leaver.member
    assert leaver.member.session == 2


def test_nobody_carries_the_work_of_a_peer_without_a_vote_nor_counts_on_its_goodbye() -> None:
    """Once the leader of a record that counted such a leaver is dead, nobody could tell that a quorum may have acked it."""
    table, opener, leaver = _told_of_a_leaver(num_founders=3)
    assert leaver.peer not in opener.head.roster
    assert carriers(leaver.state, table.now_s) == []
    assert leaver.peer not in opener.state.open.leaves
    proposal = _first_proposal_of(table, opener)
    assert proposal.member(leaver.peer) is None


# --- asked to leave -----------------------------------------------------------------------------------------------------------


def test_a_peer_that_is_asked_to_leave_takes_its_work_once_and_opens_no_round() -> None:
    table = Table(3)
    acquaint(table)
    opener = table.opener()
    opener.feed(Progressed(700, True))
    (order,) = opener.feed(LeaveOrdered(is_soon=True))
    assert order == PrepareContribution(opener.head.commit)
    assert opener.feed(LeaveOrdered(is_soon=True)) == ()
    table.talk()
    assert opener.state.open.contribution is not None
    assert opener.feed(LeaveOrdered(is_soon=True)) == ()
    assert len(opener.ordered(PrepareContribution)) == 1
    table.now_s += 1.0
    opener.feed(RoundTicked())
    assert opener.sent(Proposal) == []


@pytest.mark.parametrize(
    "trouble", ["nothing is ready", "it may not contribute", "nobody is here", "nobody can be reached"]
)
def test_nothing_is_taken_from_a_peer_that_leaves_where_nobody_could_bring_it(trouble: str) -> None:
    table = Table(3)
    acquaint(table)
    seat = table.opener()
    seat.feed(Progressed(0 if trouble == "nothing is ready" else 700, trouble != "it may not contribute"))
    for other in table.others(seat):
        if trouble == "nobody is here":
            seat.feed(PeerLost(other.peer, table.now_s))
        elif trouble == "nobody can be reached":
            view = seat.state.peers[other.peer]
            seat.state = with_views(seat.state, {other.peer: replace(view, is_inbound_reachable=False)})
    assert seat.feed(LeaveOrdered(is_soon=True)) == ()
    assert "nothing is taken before we leave" in seat.reasons[-1]


def test_carriers_are_reachable_and_stand_on_our_head_and_the_opener_comes_first() -> None:
    table = Table(6)
    acquaint(table)
    opener = table.opener()
    seat, behind, outbound, *rest = table.others(opener)
    view = seat.state.peers[behind.peer]
    assert view.head is not None
    views = {
        behind.peer: replace(view, head=replace(view.head, head=CommitId(b"o" * 32))),
        outbound.peer: replace(seat.state.peers[outbound.peer], is_inbound_reachable=False),
    }
    state = with_views(seat.state, views)
    found = carriers(state, table.now_s)
    assert found[0] == opener.member
    assert found[-1] == behind.member
    assert set(found) == {opener.member, behind.member, *(each.member for each in rest)}


def test_a_goodbye_names_the_carrier_only_on_the_base_of_the_contribution() -> None:
    table = Table(3)
    acquaint(table)
    seat, other, _ = table.live()
    elsewhere = LeaveOrdered(base=CommitId(b"o" * 32), carrier=other.member)
    (order,) = seat.feed(elsewhere)
    assert isinstance(order, LogLeave)
    assert order.leave.carrier is None
    (order,) = other.feed(LeaveOrdered(base=other.head.commit, carrier=seat.member))
    assert isinstance(order, LogLeave)
    assert order.leave.carrier == seat.member


# --- voters that a proposal leaves out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after_s", "has_answered", "has_reported", "counts"),
    [
        (1.0, True, False, True),
        (1.0, False, False, False),
        (1.0, True, True, False),
        (10 * SUSPECT_AFTER_S, True, False, False),
    ],
    ids=["answers", "is silent", "has reported that it does not hold the unit", "has not reported for long"],
)
def test_a_voter_that_answers_and_has_not_reported_yet_is_asked_and_counted_shortly_after_our_start(
    after_s: float, has_answered: bool, has_reported: bool, counts: bool
) -> None:
    """Otherwise a leader could open the first round a moment after the start and drop everybody not known to work yet."""
    table = Table(4)
    seat, (other, *rest) = table.opener(), table.others(table.opener())
    table.now_s += after_s
    for each in rest:
        seat.hear(each, heartbeat_of(each))
    if has_reported:
        seat.hear(other, replace(heartbeat_of(other), heads=()))
    if has_answered:
        seat.feed(PeersAnswered(((other.peer, table.now_s),)))
    members = tuple(each.member for each in (seat, *rest))
    proposal = replace(first_proposal(table), members=members)

    asked = ask_left_out(seat.state, proposal, table.now_s)

    assert [order.to for order in asked if isinstance(order, SendHeartbeat)] == ([(other.peer,)] if counts else [])
    assert takes_part(seat.state, proposal, other.peer, None, table.now_s) is counts
