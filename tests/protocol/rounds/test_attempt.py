from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import pytest

from protocol.ids import PeerId
from protocol.rounds import participants
from protocol.rounds.events import ExchangeMeasured, LeaveOrdered, PeerLost, Progressed, RoundTicked
from protocol.rounds.lineage.quorum import tie_holder
from protocol.rounds.liveness import LONGER
from protocol.rounds.messages.messages import Ack, Committed, Member, Mend, Proposal, ResultReady, RoundMessage, Settle
from protocol.rounds.messages.record import Included
from protocol.rounds.messages.wire import decode_record
from protocol.rounds.orders import GiveTime, LogAck, ReportDoubleVote, Send, SendHeartbeat
from protocol.rounds.participants import DEADLINE_FACTOR, LEAST_REDUCE_S, settle_within_s
from protocol.rounds.queries import ready_tokens, thin_from_s
from protocol.rounds.schedule.sum_rules import SumRules
from protocol.rounds.schedule.target import RoundTarget
from tests.protocol.rounds import round_table
from tests.protocol.rounds.round_table import RUN_ID, Parcel, Seat, Table, acquaint, contribution_root, heartbeat_of


def _proposal(seat: Seat) -> Proposal:
    """The last proposal of the seat."""
    message = seat.sent(Proposal)[-1]
    assert isinstance(message, Proposal)
    return message


def _proposed(table: Table) -> tuple[Seat, Proposal]:
    """The opener, and its plan of the first attempt."""
    opener = table.opener()
    table.run_until(lambda: bool(opener.sent(Proposal)), 10.0)
    return opener, _proposal(opener)


# --- the plan -----------------------------------------------------------------------------------------------------------------


def test_an_attempt_names_every_caught_up_member_and_cuts_the_vector_among_those_who_can_be_reached() -> None:
    table = Table(5)
    behind_nat = table.others(table.opener())[0]
    behind_nat.reconfigure(is_inbound_reachable=False)
    _, proposal = _proposed(table)
    assert {m.peer for m in proposal.members} == set(table.seats)
    assert {part.reducer for part in proposal.slices} == set(table.seats) - {behind_nat.peer}


@pytest.mark.parametrize("most_slices", [4, 5])
def test_a_leader_reduces_unless_as_many_others_may_as_there_are_slices(
    most_slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends the record and the certificate to many others, and would be the busiest peer by far."""
    monkeypatch.setattr(participants, "MAX_SLICES", most_slices)
    table = Table(5)
    opener, proposal = _proposed(table)
    assert ({part.reducer for part in proposal.slices} == set(table.seats) - {opener.peer}) == (most_slices == 4)
    table.run_until(lambda: table.all_at(1))


def test_a_slow_member_that_brings_nothing_does_not_make_its_leaders_cap_too_low() -> None:
    """It lowered the median when the cap was made. The first attempt commits."""
    table = Table(3, longest_interval_s=5.0)
    slow, *_ = seats = table.live()
    for seat, tokens in zip(seats, (10, 50, 1000), strict=True):
        seat.tokens = tokens
    acquaint(table)
    slow.has_trainer = False
    table.run_until(lambda: table.all_at(1), 60.0)
    record = slow.disk.chain[0][0].record
    assert record is not None
    assert record.contributor(slow.peer) is None
    assert (record.ballot.attempt, record.weight_cap_tokens) == (0, 200)


def test_where_nobody_can_be_reached_the_opener_sums_itself() -> None:
    table = Table(3)
    for seat in table.live():
        seat.reconfigure(is_inbound_reachable=False)
    opener, proposal = _proposed(table)
    assert {part.reducer for part in proposal.slices} == {opener.peer}
    table.run_until(lambda: table.all_at(1))


def test_no_more_members_are_named_than_the_run_allows() -> None:
    table = Table(6, max_members=4)
    opener, proposal = _proposed(table)
    assert len(proposal.members) == 4
    assert proposal.member(opener.peer) == opener.member


def test_where_more_peers_wait_equally_long_than_a_round_may_have_their_tokens_do_not_decide_who_takes_part() -> None:
    members: set[tuple[str, ...]] = set()
    for rich in (range(1, 3), range(3, 5), range(5, 6)):
        table = Table(6, max_members=4)
        others = table.others(table.opener())
        for number in rich:
            others[number - 1].tokens = 300
        table.drops = lambda sender, to, message: isinstance(message, Proposal)
        opener, proposal = _proposed(table)
        assert proposal.member(opener.peer) is not None
        members.add(tuple(member.peer for member in proposal.members))
        assert ready_tokens(opener.state, table.now_s) == 100 * (4 - len(rich)) + 300 * len(rich)
    assert [len(each) for each in members] == [4]


def test_the_last_rounds_members_have_no_place_while_others_wait_and_who_brings_work_alone_counts() -> None:
    table = Table(12, num_founders=4, max_members=4, longest_interval_s=5.0)
    table.run_until(lambda: table.all_at(1))
    for index in (2, 3):
        last, opener = table.live()[0].head.record, table.opener()
        assert last is not None
        proposed = len(opener.sent(Proposal))
        table.run_until(partial(_has_proposed, opener, proposed + 1), 10.0)
        members = {member.peer for member in _proposal(opener).members}
        assert len(members) == 4
        assert members & {entry.peer for entry in last.contributors} <= {opener.peer}, "the old roster has no half"
        table.run_until(partial(table.all_at, index), 60.0)
        made = table.live()[0].head.record
        assert made is not None
        assert {entry.peer for entry in made.contributors} <= members
        assert all(entry.credited_tokens == 100 for entry in made.contributors)


def _has_proposed(seat: Seat, times: int) -> bool:
    return len(seat.sent(Proposal)) >= times


def test_one_weight_cap_holds_for_all_reducers_and_counts_those_with_work_only() -> None:
    table = Table(4)
    idle, rich, *_ = table.others(table.opener())
    idle.tokens, rich.tokens = 0, 10_000
    _, proposal = _proposed(table)
    assert proposal.weight_cap_tokens == 4 * 100
    table.run_until(lambda: table.all_at(1))
    record = rich.disk.chain[0][0].record
    assert record is not None
    assert {c.peer: c.credited_tokens for c in record.contributors}[rich.peer] == 400


@pytest.mark.parametrize(("upload_s", "expected_s"), [(0.0, 20.0), (0.1, LEAST_REDUCE_S), (12.0, 24.0), (500.0, 60.0)])
def test_deadlines_are_learned_from_the_slowest_upload_up_to_the_longest_interval(
    upload_s: float, expected_s: float
) -> None:
    table = Table(3)
    for seat in table.live():
        seat.feed(ExchangeMeasured(0.1 if upload_s else 0.0))
    table.others(table.opener())[0].feed(ExchangeMeasured(upload_s))
    _, proposal = _proposed(table)
    assert proposal.reduce_within_s == expected_s


def test_each_failed_attempt_doubles_the_deadline() -> None:
    table = Table(1, sums=SumRules(first_within_s=8.0))
    (seat,) = table.live()
    seat.tokens = 300
    table.drops = lambda sender, to, message: isinstance(message, ResultReady)
    table.run_until(lambda: len(seat.sent(Proposal)) >= 4, 400.0)
    deadlines = [m.reduce_within_s for m in seat.sent(Proposal) if isinstance(m, Proposal)]
    assert deadlines[:4] == [8.0, 16.0, 32.0, 60.0]


# --- mending ------------------------------------------------------------------------------------------------------------------


def _with_dead_reducer(table: Table) -> tuple[Seat, Seat, Proposal]:
    """(opener, victim, proposal): a reducer dies before its result is anywhere."""
    opener = table.opener()
    victim = table.others(opener)[0]
    table.drops = lambda sender, to, message: isinstance(message, ResultReady) and sender == victim.peer
    proposal = _proposed(table)[1]
    table.kill(victim)
    return opener, victim, proposal


def test_the_slice_of_a_dead_reducer_is_given_to_others_within_the_attempt() -> None:
    table = Table(4)
    opener, victim, proposal = _with_dead_reducer(table)
    table.run_until(lambda: table.all_at(1), 10.0)
    (mend,) = opener.sent(Mend)
    assert isinstance(mend, Mend)
    assert mend.ballot == proposal.ballot
    assert all(part.reducer != victim.peer for part in mend.slices)
    kept = {part for part in proposal.slices if part.reducer != victim.peer}
    assert kept <= set(mend.slices)
    record = opener.disk.chain[0][0].record
    assert record is not None
    assert record.ballot == proposal.ballot
    assert victim.peer in record.roster, "it contributed, and nobody can be voted out whose work counts"
    table.run_until(lambda: table.all_at(2), 20.0)
    assert victim.peer not in opener.disk.chain[1][0].roster


def test_a_slice_that_was_summed_by_one_who_is_gone_is_summed_again_where_its_bytes_are_nowhere() -> None:
    """Found by cutting processes off: the leader settled on an announcement whose bytes were at the cut-off reducer alone, and the
    attempt after it cost 2 s.
    """
    table = Table(4)
    opener = table.opener()
    victim, slow, *_ = table.others(opener)
    table.withheld.add(victim.peer)
    held = table.hold_results(slow)
    proposal = _proposed(table)[1]
    table.run_for(0.5)
    assert len(opener.state.open.results) == 3
    table.kill(victim)
    table.run_for(0.5)
    table.let_go(slow, held)
    table.run_until(lambda: table.all_at(1), 10.0)
    assert opener.sent(Mend)
    record = opener.disk.chain[0][0].record
    assert record is not None
    assert record.ballot == proposal.ballot
    assert all(part.reducer != victim.peer for part in record.slices)


def test_a_slice_that_was_summed_by_one_who_is_gone_counts_where_the_leader_has_its_bytes() -> None:
    table = Table(4)
    opener = table.opener()
    victim, slow, *_ = table.others(opener)
    held = table.hold_results(slow)
    _proposed(table)
    table.run_for(0.5)
    table.kill(victim)
    table.run_for(0.5)
    table.let_go(slow, held)
    table.run_until(lambda: table.all_at(1), 10.0)
    assert not opener.sent(Mend)
    record = opener.disk.chain[0][0].record
    assert record is not None
    assert any(part.reducer == victim.peer for part in record.slices)


def test_a_reset_connection_mends_at_once_and_silence_after_the_suspicion() -> None:
    table = Table(4)
    opener, victim, _ = _with_dead_reducer(table)
    victim.is_up = True
    table.freeze(victim)
    began_s = table.now_s
    table.run_until(lambda: bool(opener.sent(Mend)), 10.0)
    assert table.now_s - began_s > opener.state.config.suspect_after_s
    table = Table(4)
    opener, victim, _ = _with_dead_reducer(table)
    opener.feed(PeerLost(victim.peer))
    assert opener.sent(Mend)


def test_a_late_reducer_loses_its_slice_at_the_deadline_and_gets_none_in_the_next_attempts_of_this_leader() -> None:
    table = Table(4, sums=SumRules(first_within_s=6.0))
    opener = table.opener()
    (late, *_) = table.others(opener)
    table.drops = lambda sender, to, message: isinstance(message, ResultReady) and sender == late.peer
    table.run_until(lambda: table.all_at(1), 30.0)
    assert opener.sent(Mend)
    assert late.peer in opener.disk.chain[0][0].roster
    record = opener.disk.chain[0][0].record
    assert record is not None
    assert all(part.reducer != late.peer for part in record.slices)


def test_when_the_last_reducer_is_lost_the_attempt_ends_with_a_reason_and_the_round_stays_open() -> None:
    table = Table(3, sums=SumRules(first_within_s=6.0))
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, ResultReady)
    table.run_until(lambda: any("nobody can take its slice" in reason for reason in opener.reasons), 60.0)
    assert not any("is gone" in reason for reason in opener.reasons), "all of them are there, and late"
    assert opener.state.open.contribution is not None
    table.drops = lambda sender, to, message: False
    table.run_until(lambda: table.all_at(1), 120.0)


def test_the_next_attempt_keeps_the_slices_of_those_who_are_still_there() -> None:
    table = Table(4)
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, Settle) and message.ballot.attempt == 0
    first = _proposed(table)[1]
    table.kill(opener)
    table.run_until(lambda: any(seat.sent(Proposal) for seat in table.live()), 30.0)
    leader = next(seat for seat in table.live() if seat.sent(Proposal))
    second = _proposal(leader)
    kept = {part for part in first.slices if part.reducer != opener.peer}
    assert kept <= set(second.slices)


# --- settling -----------------------------------------------------------------------------------------------------------------


def test_nothing_is_settled_before_every_slice_has_a_result() -> None:
    table = Table(4)
    opener = table.opener()
    (slow, *_) = table.others(opener)
    table.drops = lambda sender, to, message: isinstance(message, ResultReady) and sender == slow.peer
    _proposed(table)
    table.run_for(3.0)
    assert opener.sent(Settle) == []
    assert len(opener.state.open.results) == 3


def test_a_member_that_signs_two_claims_on_one_base_is_out_and_the_round_goes_on_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two reducers with different claims of one member would leave the leader without any record to settle."""
    table = Table(4)
    opener = table.opener()
    (liar, *_) = table.others(opener)
    honest, told = round_table.included_of, itertools.count()

    def lying(seat: Seat, member: Member, proposal: Proposal, **changes: object) -> Included:
        more = {"tokens": 90 + next(told)} if seat is liar else {}
        return honest(seat, member, proposal, **{**changes, **more})

    monkeypatch.setattr(round_table, "included_of", lying)
    table.run_until(lambda: all(seat.head.index >= 2 for seat in table.live() if seat is not liar), 120.0)
    others = [seat for seat in table.live() if seat is not liar]
    assert all(liar.peer in seat.state.barred.expelled for seat in others), "its leader tells everybody"
    assert all(seat.ordered(ReportDoubleVote) for seat in others), "and each of them the host"
    record = opener.disk.chain[0][0].record
    assert record is not None
    assert liar.peer not in {entry.peer for entry in record.contributors}


def test_the_next_roster_are_all_members_that_were_not_suspected_whether_they_acked_or_not() -> None:
    table = Table(5)
    slow = table.others(table.opener())[:2]
    names = {seat.peer for seat in slow}
    table.drops = lambda sender, to, message: isinstance(message, Ack) and sender in names
    table.run_until(lambda: table.all_at(3))
    assert all(len(link.roster) == 5 for link, _ in slow[0].disk.chain)


def test_one_ballot_settles_one_record_only() -> None:
    table = Table(5)
    table.drops = lambda sender, to, message: isinstance(message, Ack)
    table.run_for(60.0)
    settled: dict[object, set[bytes]] = {}
    for seat in table.seats.values():
        for message in seat.sent(Settle):
            assert isinstance(message, Settle)
            settled.setdefault((message.base, message.ballot), set()).add(message.record)
    assert len(settled) >= 2
    assert all(len(records) == 1 for records in settled.values())
    assert len({decode_record(record).ballot for records in settled.values() for record in records}) == 1


@pytest.mark.parametrize(("num_peers", "hear_early"), [(20, False), (8, True)])
def test_in_a_large_run_the_record_goes_to_the_voters_alone_and_all_members_commit(
    num_peers: int, hear_early: bool
) -> None:
    table = Table(num_peers, max_members=4)
    acquaint(table)
    table.run_until(lambda: table.all_at(3), 300.0)
    beyond_voters = set[PeerId]()
    for seat in table.seats.values():
        rosters = {link.commit: frozenset(link.roster) for link, *_ in seat.disk.chain}
        for order in seat.ordered(Send):
            if isinstance(order, Send) and isinstance(order.message, Settle) and order.message.base in rosters:
                voters = rosters[order.message.base] | {seat.peer}
                assert voters <= {*order.to, seat.peer}
                beyond_voters |= {*order.to} - voters
    assert bool(beyond_voters) == hear_early


def test_a_reducer_that_dies_with_the_only_copy_ends_the_attempt_before_its_time() -> None:
    table = Table(3)
    opener = table.opener()
    victim, other = table.others(opener)
    table.gathers = False
    table.run_until(lambda: bool(opener.sent(Settle)), 10.0)
    settled_s = table.now_s
    for seat in (opener, other):
        seat.disk.results = {root for root in seat.disk.results if root not in _results_of(opener, victim)}
    table.gathers = True
    table.kill(victim)
    for seat in table.live():
        seat.tokens = 150
    table.run_until(lambda: table.all_at(1), 30.0)
    assert "a reducer died with the only copy of its result" in opener.reasons
    assert table.now_s - settled_s < opener.state.config.settle_within_s
    record = opener.disk.chain[0][0].record
    assert record is not None
    assert record.ballot.attempt >= 1


def test_a_settled_record_waits_for_results_as_long_as_its_slices_may_wait_for_contributions() -> None:
    table = Table(3)
    opener = table.opener()
    table.gathers = False
    table.run_until(lambda: bool(opener.sent(Settle)), 10.0)
    state, proposal = opener.state, opener.state.open.proposal
    assert proposal is not None
    assert settle_within_s(state) == max(state.config.settle_within_s, proposal.reduce_within_s)
    slow = replace(state, open=replace(state.open, proposal=replace(proposal, reduce_within_s=400.0)))
    assert settle_within_s(slow) == 400.0


def test_a_line_that_became_thin_since_the_proposal_is_given_the_time_that_its_upload_will_take() -> None:
    table = Table(3)
    opener = table.opener()
    late, other = table.others(opener)
    table.gathers = False
    table.run_until(lambda: bool(opener.sent(Settle)), 10.0)
    assert settle_within_s(opener.state) == opener.state.config.settle_within_s
    late.feed(Progressed(100, True, late_upload_s=25.0))
    opener.hear(late, heartbeat_of(late))
    assert settle_within_s(opener.state) == DEADLINE_FACTOR * 25.0
    other.feed(Progressed(100, True, late_upload_s=5000.0))
    opener.hear(other, heartbeat_of(other))
    assert settle_within_s(opener.state) == opener.state.config.longest_interval_s


def _thin(table: Table) -> tuple[Seat, Seat, Seat]:
    """(opener, whose line became thin, another), with an attempt under way whose results do not come."""
    acquaint(table)
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, ResultReady)
    table.run_until(lambda: all(seat.state.open.proposal is not None for seat in table.live()), 10.0)
    late, other = table.others(opener)
    return opener, late, other


def test_slices_of_the_running_attempt_are_given_the_time_that_a_late_upload_needs_and_its_leader_waits_for_them() -> (
    None
):
    table = Table(3, longest_interval_s=400.0)
    opener, late, other = _thin(table)
    proposal = opener.state.open.proposal
    assert proposal is not None
    assert [seat.ordered(GiveTime) for seat in table.live()] == [[]] * 3
    late.late_upload_s = 100.0
    table.run_for(5.0)
    for seat in (opener, late, other):
        (order,) = seat.ordered(GiveTime)
        assert order == GiveTime(proposal.ballot, DEADLINE_FACTOR * 100.0)
    table.run_for(proposal.reduce_within_s + 100.0)
    assert opener.sent(Mend) == []
    assert opener.state.open.leading is not None
    assert opener.state.open.leading.ballot == proposal.ballot
    table.run_until(lambda: opener.state.open.num_failed == 1, 120.0)


def _lent(table: Table) -> tuple[Seat, Seat, PeerId]:
    """(opener, another member, one that holds nothing of the unit and was given the last slice), as in `_thin`."""
    opener, _, other = _thin(table)
    lender = PeerId("lender")
    for seat in (opener, other):
        opened = seat.state.open
        assert opened.proposal is not None
        slices = (*opened.proposal.slices[:-1], replace(opened.proposal.slices[-1], reducer=lender))
        lent = replace(opened, proposal=replace(opened.proposal, slices=slices))
        late = {
            peer: replace(view, exchange_s=100.0, reported_at_s=opened.proposal_at_s + 1.0)
            for peer, view in seat.state.peers.items()
        }
        late[lender] = replace(next(iter(late.values())), peer=lender, member=None, head=None, exchange_s=0.0)
        seat.state = replace(seat.state, open=lent, peers=MappingProxyType(late))
    return opener, other, lender


def _reported_to(seat: Seat, peer: PeerId) -> list[Proposal]:
    sends = [order for order in seat.orders if isinstance(order, Send) and peer in order.to]
    return [order.message for order in sends if isinstance(order.message, Proposal)]


def test_a_reducer_that_does_not_hold_the_unit_is_told_of_late_uploads_by_who_leads() -> None:
    table = Table(3, longest_interval_s=400.0)
    opener, other, lender = _lent(table)
    proposal = opener.state.open.proposal
    assert proposal is not None
    for seat in (opener, other):
        seat.feed(RoundTicked())
        assert [type(order) for order in seat.ordered(GiveTime)] == [GiveTime]
    assert _reported_to(opener, lender) == [replace(proposal, reduce_within_s=DEADLINE_FACTOR * 100.0)]
    assert _reported_to(other, lender) == []


def test_a_reducer_that_comes_to_a_slice_later_is_told_of_late_uploads_known_by_then() -> None:
    table = Table(3, longest_interval_s=400.0)
    opener, _, lender = _lent(table)
    proposal = opener.state.open.proposal
    assert proposal is not None
    opener.feed(RoundTicked())
    opener.feed(PeerLost(next(part.reducer for part in proposal.slices if part.reducer not in (lender, opener.peer))))
    opener.feed(RoundTicked())
    assert opener.sent(Mend)
    assert {reported.reduce_within_s for reported in _reported_to(opener, lender)} == {DEADLINE_FACTOR * 100.0}
    assert len({reported.slices for reported in _reported_to(opener, lender)}) == 2


def test_an_upload_is_told_to_all_once_it_takes_longer_than_slices_wait_for_or_than_silence_is_allowed_for() -> None:
    """Told whenever it has grown, as it was, sixteen members who wait 20 s tell each other of 3 s."""
    table = Table(3, longest_interval_s=4000.0)
    _, late, _ = _thin(table)
    proposal = late.state.open.proposal
    assert proposal is not None

    def reported_of(upload_s: float) -> list[SendHeartbeat]:
        before = len(late.orders)
        late.feed(Progressed(0, True, late_upload_s=upload_s))
        late.feed(RoundTicked())
        return [
            order for order in late.orders[before:] if isinstance(order, SendHeartbeat) and "upload" in order.reason
        ]

    allowed_s = proposal.reduce_within_s / DEADLINE_FACTOR
    assert allowed_s < thin_from_s(late.state)
    assert reported_of(LONGER * allowed_s - 0.1) == []
    (order,) = reported_of(LONGER * allowed_s + 0.1)
    assert len(order.to) == 2
    assert reported_of(LONGER * LONGER * allowed_s) == []
    assert reported_of(LONGER * LONGER * (allowed_s + 0.2)) != []


def test_an_upload_that_slices_wait_for_is_told_to_all_where_it_lets_silence_last_longer() -> None:
    table = Table(3, longest_interval_s=4000.0)
    _, late, _ = _thin(table)
    opened = late.state.open
    assert opened.proposal is not None
    patient = replace(opened, proposal=replace(opened.proposal, reduce_within_s=1000.0))
    late.state = replace(late.state, open=patient, exchange_s=LONGER * thin_from_s(late.state) + 0.1)
    late.feed(RoundTicked())
    assert [o for o in late.orders if isinstance(o, SendHeartbeat) and "upload" in o.reason]


def test_time_for_slices_has_an_end_whatever_a_member_tells_and_grows_in_steps() -> None:
    table = Table(3, longest_interval_s=400.0)
    _, late, other = _thin(table)
    for upload_s in (100.0, 104.0, 130.0, 1e6):
        late.late_upload_s = upload_s
        table.run_for(3.0)
    reported = [order.reduce_within_s for order in other.ordered(GiveTime) if isinstance(order, GiveTime)]
    assert reported == [200.0, 260.0, 400.0]


def test_what_an_upload_took_before_the_proposal_gives_its_slices_no_more_time() -> None:
    """The leader knew of it; who has not heard yet that a line is well again must not keep its slice open."""
    table = Table(3, longest_interval_s=400.0)
    _, late, other = _thin(table)
    view = replace(other.state.peers[late.peer], exchange_s=90.0, reported_at_s=other.state.open.proposal_at_s - 1.0)
    other.state = replace(other.state, peers=MappingProxyType({**other.state.peers, late.peer: view}))
    other.feed(RoundTicked())
    assert other.ordered(GiveTime) == []


def test_the_upload_under_way_is_told_as_soon_as_it_takes_longer_than_the_last_one_and_ends_with_what_it_took() -> None:
    table = Table(3)
    seat = table.live()[0]
    seat.feed(ExchangeMeasured(3.0))
    seat.feed(Progressed(0, True, late_upload_s=40.0))
    assert seat.state.exchange_s == 40.0
    seat.feed(Progressed(0, True))
    assert seat.state.exchange_s == 40.0
    seat.feed(ExchangeMeasured(30.0))
    assert seat.state.exchange_s == 30.0


def test_a_reducer_that_falls_silent_with_the_only_copy_is_not_waited_for_twice() -> None:
    """The last result comes when one reducer has been silent for a while already."""
    table = Table(3)
    opener = table.opener()
    victim, other = table.others(opener)
    late: list[RoundMessage] = []

    def is_late(sender: PeerId, to: PeerId, message: RoundMessage) -> bool:
        if isinstance(message, ResultReady) and (sender, to) == (other.peer, opener.peer):
            late.append(message)
            return True
        return False

    table.drops, table.gathers = is_late, False
    table.run_until(lambda: bool(late), 10.0)
    table.freeze(victim)
    frozen_s = table.now_s
    table.run_for(1.5)
    table.drops = lambda sender, to, message: False
    table.deliver(Parcel(other.peer, opener.peer, late[0], b""))
    assert opener.sent(Settle)
    table.run_until(lambda: "a reducer died with the only copy of its result" in opener.reasons, 30.0)
    assert table.now_s - frozen_s <= opener.state.config.suspect_after_s + 0.5


def _results_of(leader: Seat, reducer: Seat) -> set[bytes]:
    return {header.result_hash for header in leader.state.open.results.values() if header.reducer == reducer.peer}


# --- acks ---------------------------------------------------------------------------------------------------------------------


def test_a_quorum_of_acks_is_enough_and_the_others_are_not_waited_for() -> None:
    table = Table(5)
    opener = table.opener()
    slow = {seat.peer for seat in table.others(opener)[:2]}
    table.drops = lambda sender, to, message: isinstance(message, Ack) and sender in slow
    began_s = table.now_s
    table.run_until(lambda: table.all_at(1), 10.0)
    assert table.now_s - began_s < 5.0
    assert opener.certificates[0].num_acks == 3


def test_acks_of_another_ballot_or_commit_do_not_count() -> None:
    table = Table(3)
    opener = table.opener()
    (seat, *_) = table.others(opener)
    table.drops = lambda sender, to, message: isinstance(message, Ack) and sender != to
    table.run_until(lambda: bool(seat.ordered(LogAck)), 10.0)
    order = seat.ordered(LogAck)[0]
    assert isinstance(order, LogAck)
    ack = Ack(seat.state.config.unit, order.base, order.ballot, order.commit, version=1)
    assert opener.hear(seat, replace(ack, ballot=replace(order.ballot, attempt=1))) == ()
    assert opener.hear(seat, replace(ack, commit=order.base)) == ()
    (send,) = opener.hear(seat, ack)
    assert isinstance(getattr(send, "message", None), Committed)


def test_a_goodbye_makes_the_quorum_smaller_and_is_part_of_the_certificate() -> None:
    table = Table(5)
    opener = table.opener()
    leaver, acker = next(
        (leaver, acker)
        for leaver in table.others(opener)
        for acker in table.others(opener, leaver)
        if tie_holder(RUN_ID, [peer for peer in table.seats if peer != leaver.peer]) in (opener.peer, acker.peer)
    )
    silent = {seat.peer for seat in table.others(opener, acker)}
    table.drops = lambda sender, to, message: isinstance(message, Ack) and sender in silent
    table.run_until(lambda: bool(opener.sent(Settle)), 10.0)
    table.tick()
    assert opener.head.index == 0
    leaver.feed(LeaveOrdered())
    table.talk()
    assert all(seat.head.index == 1 for seat in table.others(leaver))
    assert opener.certificates[0].num_acks == 2
    assert len(opener.certificates[0].leaves) == 1


def test_a_failed_attempt_drops_neither_the_contribution_nor_the_acks_of_others() -> None:
    table = Table(3)
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, Ack)
    table.run_until(lambda: any("ran out of time while settling" in reason for reason in opener.reasons), 60.0)
    for seat in table.live():
        assert seat.state.open.acked is not None
        assert seat.state.open.contribution is not None
        assert seat.state.open.contribution.root == contribution_root(seat.member, table.genesis.commit)


def test_an_attempt_without_a_quorum_in_reach_is_not_proposed() -> None:
    table = Table(3)
    acquaint(table)
    opener = table.opener()
    others = table.others(opener)
    opener.feed(Progressed(1000, True))
    table.cuts = {(seat.peer, opener.peer) for seat in others}
    for seat in others:
        opener.feed(PeerLost(seat.peer))
    table.run_for(8.0)
    assert opener.sent(Proposal) == []


def test_shares_follow_the_uploads_that_heartbeats_tell() -> None:
    table = Table(3)
    opener = table.opener()
    for seat, upload in zip((opener, *table.others(opener)), (100, 300, 200), strict=True):
        seat.upload_bytes_per_s = upload
    _, proposal = _proposed(table)
    shares = {part.reducer: part.stop_chunk - part.first_chunk for part in proposal.slices}
    assert [shares[seat.peer] for seat in (opener, *table.others(opener))] == [2, 6, 4]


# --- when the next round is due -----------------------------------------------------------------------------------------------


def _targets(table: Table, num_rounds: int) -> list[tuple[int, int]]:
    """(tokens committed, target of the next round) after each of the first rounds; every peer has the same."""
    found = []
    for index in range(num_rounds + 1):
        table.run_until(partial(table.all_at, index))
        heads = {(seat.head.total_tokens, seat.head.target_tokens) for seat in table.live()}
        assert len(heads) == 1
        found += sorted(heads)
    return found


def test_every_record_names_the_next_target_of_the_ramp_and_all_agree_on_it() -> None:
    target = RoundTarget(450, 40, ramp_share=0.5)
    table = Table(3, target=target)
    first, *others = _targets(table, 4)
    assert first == (0, 300)  # as the host's start record says
    assert [next_target for _, next_target in others] == [target.planned(total, 3) for total, _ in others]
    assert others[0][1] < others[-1][1] == 450


def test_a_measured_target_is_within_the_manifests_bounds_and_the_same_for_all() -> None:
    *_, last = _targets(Table(3, target=RoundTarget(400, 10, exchange_share=0.9)), 4)
    assert 30 <= last[1] <= 400
