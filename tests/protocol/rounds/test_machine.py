from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, open_envelope, seal
from protocol.identity.identity import KEY_BYTES
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds import machine as core
from protocol.rounds.bad_results import open_result
from protocol.rounds.events import (
    Applied,
    BytesHeld,
    ContributionFailed,
    ContributionReady,
    ExchangeMeasured,
    MessageArrived,
    Progressed,
    RoundTicked,
    SpineMoved,
)
from protocol.rounds.lineage.lineage import known_commits
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.messages import (
    Committed,
    Heartbeat,
    Member,
    Mend,
    PreVoteRequest,
    Promise,
    PromiseRequest,
    Proposal,
    Refusal,
    ResultHeader,
    ResultReady,
    Settle,
    SliceSpec,
)
from protocol.rounds.messages.record import NO_SPINE, Ballot, Included
from protocol.rounds.messages.wire import decode_message, encode_body, encode_message
from protocol.rounds.orders import (
    AnswerWithCertificate,
    BeginExchange,
    CatchUp,
    GatherBytes,
    LogPromise,
    PrepareContribution,
    Send,
)
from protocol.rounds.schedule.sum_rules import SumRules
from protocol.rounds.state import OpenRound
from tests.protocol.rounds.made_commits import made_spine
from tests.protocol.rounds.round_table import (
    NUM_CHUNKS,
    RUN_ID,
    UNIT,
    Seat,
    Table,
    acquaint,
    consents,
    contribution_root,
    first_proposal,
    heartbeat_of,
    included_of,
    mute,
    state_root,
    wanted,
    with_sum,
)


def _result(reducer: Seat, proposal: Proposal, part: SliceSpec, **changes: object) -> ResultReady:
    included = tuple(included_of(reducer.table.seats[m.peer], m, proposal) for m in proposal.members)
    header = ResultHeader(
        UNIT,
        proposal.base,
        proposal.ballot,
        part.first_chunk,
        part.stop_chunk,
        part.reducer,
        included,
        (),
        100 * len(included),
        contribution_root(reducer.member, proposal.base),
    )
    header = with_sum(replace(header, **changes), proposal, reducer)  # type: ignore[arg-type]
    return ResultReady(UNIT, proposal.base, proposal.ballot, reducer.sealed(encode_body(header)))


def test_three_members_commit_round_after_round_on_one_chain() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(5))
    heads = {seat.head.index: seat.head.commit for seat in table.live()}
    assert len({seat.head.commit for seat in table.live() if seat.head.index == max(heads)}) == 1
    record = table.live()[0].head.record
    assert record is not None
    assert len(record.contributors) == 3


def test_a_round_below_the_target_waits_until_the_longest_interval() -> None:
    table = Table(3)
    for seat in table.live():
        seat.tokens = 10
    table.run_for(50.0)
    assert all(seat.head.index == 0 for seat in table.live())
    table.run_until(lambda: table.all_at(1), 40.0)


def test_nothing_is_opened_after_the_runs_last_token() -> None:
    table = Table(3, total_tokens=300)
    table.run_until(lambda: table.all_at(1))
    table.run_for(100.0)
    assert {seat.head.index for seat in table.live()} == {1}


def test_a_single_peer_commits_alone_when_it_is_the_whole_roster() -> None:
    table = Table(1)
    table.live()[0].tokens = 300
    table.run_until(lambda: table.all_at(3), 20.0)
    record = table.live()[0].head.record
    assert record is not None
    assert not record.lone


# --- the member's side --------------------------------------------------------------------------------------------------------


def test_reducing_begins_with_the_proposal_and_again_when_the_own_delta_is_there() -> None:
    table = Table(3)
    acquaint(table)
    mute(table)
    opener = table.opener()
    (seat, *_) = table.others(opener)
    proposal = first_proposal(table)
    assert seat.hear(opener, proposal) == (PrepareContribution(proposal.base), BeginExchange(proposal))
    root = contribution_root(seat.member, proposal.base)
    assert seat.feed(ContributionReady(proposal.base, root, 100)) == (BeginExchange(proposal),)
    assert seat.state.open.contribution is not None


def test_a_member_whose_trainer_is_away_still_reduces() -> None:
    table = Table(3)
    acquaint(table)
    mute(table)
    opener = table.opener()
    (seat, *_) = table.others(opener)
    proposal = first_proposal(table)
    seat.hear(opener, proposal)
    assert seat.feed(ContributionFailed(proposal.base)) == (BeginExchange(proposal),)
    assert "reducing only" in seat.reasons[-1]


def test_a_round_commits_without_the_delta_of_a_member_whose_trainer_is_away() -> None:
    table = Table(3)
    (away, *_) = table.others(table.opener())
    away.has_trainer = False
    table.run_until(lambda: table.all_at(1))
    record = away.head.record
    assert record is not None
    assert record.contributor(away.peer) is None
    assert away.peer in record.roster


def test_one_contribution_serves_all_attempts_on_a_base() -> None:
    table = Table(3)
    table.drops = lambda sender, to, message: isinstance(message, Settle) and message.ballot.attempt == 0
    table.run_until(lambda: table.all_at(1))
    for seat in table.live():
        prepared = [a for a in seat.ordered(PrepareContribution) if a == PrepareContribution(table.genesis.commit)]
        assert len(prepared) == 1


def test_a_delta_that_comes_after_the_head_moved_is_not_offered() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(1))
    seat = table.live()[0]
    old = table.genesis.commit
    before = seat.state
    assert seat.feed(ContributionReady(old, contribution_root(seat.member, old), 100)) == ()
    assert seat.state == before
    assert "taken again" in seat.reasons[-1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ballot": Ballot(0, PeerId("somebody"))}, "under a ballot of"),
        ({"ballot": Ballot(5000, PeerId("opener"))}, "too high a number"),
        ({"index": 7}, "proposed round 7"),
        ({"members": (Member(PeerId("somebody"), 1, 1),)}, "left out of the proposal"),
        ({"codec": "fp16"}, "not the run's"),
        ({"result_codec": "int8"}, "codec fp32 and int8 for results"),
        ({"slices": (SliceSpec(0, NUM_CHUNKS + 1, PeerId("somebody")),)}, "not the run's"),
    ],
)
def test_a_proposal_that_cannot_be_meant_is_not_joined_and_it_is_said_why(change: dict[str, object], why: str) -> None:
    table = Table(3)
    acquaint(table)
    opener = table.opener()
    (seat, *_) = table.others(opener)
    ballot = change.get("ballot")
    if isinstance(ballot, Ballot) and ballot.peer == "opener":
        change = {"ballot": replace(ballot, peer=opener.peer)}
    assert seat.hear(opener, replace(first_proposal(table), **change)) == ()  # type: ignore[arg-type]
    assert why in seat.reasons[-1]


def test_a_proposal_that_names_another_session_of_ours_is_not_joined() -> None:
    table = Table(3)
    acquaint(table)
    opener = table.opener()
    (seat, *_) = table.others(opener)
    proposal = first_proposal(table)
    other = tuple(replace(m, session=99) if m.peer == seat.peer else m for m in proposal.members)
    assert seat.hear(opener, replace(proposal, members=other)) == ()
    assert "another session" in seat.reasons[-1]


def test_attempt_zero_is_taken_from_the_first_of_the_base_roster_only() -> None:
    table = Table(3)
    acquaint(table)
    second, third = table.others(table.opener())
    proposal = replace(first_proposal(table), ballot=Ballot(0, second.peer))
    assert third.hear(second, proposal) == ()
    assert "belongs to the first" in third.reasons[-1]


def test_a_proposal_below_a_promise_is_refused_and_one_that_is_known_changes_nothing() -> None:
    table = Table(3)
    acquaint(table)
    mute(table)
    opener = table.opener()
    second, third = table.others(opener)
    proposal = first_proposal(table)
    assert third.hear(opener, proposal)
    assert third.hear(opener, proposal) == ()
    high = Ballot(4, second.peer)
    assert third.hear(second, wanted(table, high)) == (LogPromise(proposal.base, high),)
    low = Ballot(2, opener.peer)
    (refused,) = third.hear(opener, replace(proposal, ballot=low, pre_votes=consents(table, low)))
    assert refused == Send((opener.peer,), Refusal(UNIT, proposal.base, high))


# --- beside the spine ---------------------------------------------------------------------------------------------------------


def test_a_unit_beside_the_spine_starts_with_it_and_the_spine_itself_without() -> None:
    spine = made_spine()
    beside, alone = Table(1, spine=spine.at(spine.left)), Table(1)
    root = state_root(alone.genesis.commit)
    for table, view in ((beside, None), (alone, spine.at(spine.left))):
        with pytest.raises(LocalProtocolError, match="spine"):
            core.start(table.config(table.live()[0].member), table.genesis, 0.0, state_root=root, spine=view)
    config = replace(alone.config(alone.live()[0].member), spine=UNIT)
    assert core.start(config, alone.genesis, 0.0, state_root=root).spine is None, "named, it is the spine as well"


@pytest.mark.parametrize("cited", ["the head", "before the head", "ahead of the head", "unknown"])
def test_a_proposal_beside_the_spine_is_joined_unless_it_cites_another_lineage(cited: str) -> None:
    spine = made_spine()
    table = Table(3, spine=spine.at(spine.trunk if cited == "ahead of the head" else spine.left))
    acquaint(table)
    mute(table)
    opener = table.opener()
    (seat, *_) = table.others(opener)
    commits = {
        "the head": spine.left.commit,
        "before the head": spine.root.commit,
        "ahead of the head": spine.right.commit,
        "unknown": CommitId(b"?" * 32),
    }
    proposal = replace(first_proposal(table), spine=commits[cited])
    assert seat.hear(opener, proposal) == (PrepareContribution(proposal.base), BeginExchange(proposal))


def test_a_proposal_that_cites_another_lineage_of_the_spine_is_declined_and_it_is_said_why() -> None:
    spine = made_spine()
    table = Table(3, spine=spine.at(spine.left))
    acquaint(table)
    opener = table.opener()
    (seat, *_) = table.others(opener)
    assert seat.hear(opener, replace(first_proposal(table), spine=spine.right.commit)) == ()
    assert "another lineage of the spine" in seat.reasons[-1]
    assert seat.state.open.proposal is None


def test_a_proposal_of_the_spine_cites_none_and_one_of_another_unit_must() -> None:
    spine = made_spine()
    for table, cited, why in (
        (Table(3), spine.left.commit, "with a spine"),
        (Table(3, spine=spine.at(spine.left)), NO_SPINE, "without a spine"),
    ):
        acquaint(table)
        opener = table.opener()
        (seat, *_) = table.others(opener)
        assert seat.hear(opener, replace(first_proposal(table), spine=cited)) == ()
        assert why in seat.reasons[-1]
        assert seat.state.open.proposal is None


def test_proposals_and_records_cite_the_spine_commit_on_which_their_opener_stands() -> None:
    spine = made_spine()
    table = Table(3, spine=spine.at(spine.left))
    table.run_until(lambda: table.all_at(2))
    proposals = [message for seat in table.live() for message in seat.sent(Proposal)]
    assert {message.spine for message in proposals if isinstance(message, Proposal)} == {spine.left.commit}
    cited = {link.record.spine for seat in table.live() for link, _ in seat.disk.chain if link.record is not None}
    assert cited == {spine.left.commit}
    whole = Table(3)
    whole.run_until(lambda: whole.all_at(1))
    record = whole.live()[0].disk.chain[0][0].record
    assert record is not None
    assert record.spine == NO_SPINE


def test_after_the_spine_moved_the_next_round_cites_where_it_went() -> None:
    spine = made_spine()
    table = Table(3, spine=spine.at(spine.left))
    table.run_until(lambda: table.all_at(1))
    for seat in table.live():
        seat.feed(SpineMoved(spine.at(spine.right)))
    index = max(seat.head.index for seat in table.live())
    table.run_until(lambda: table.all_at(index + 2))
    records = [link.record for link, _ in table.live()[0].disk.chain if link.record is not None]
    assert (records[0].spine, records[-1].spine) == (spine.left.commit, spine.right.commit)


# --- results and mending ------------------------------------------------------------------------------------------------------


def _collecting(*, has_delta: bool) -> tuple[Table, Seat, SliceSpec, Proposal]:
    """A leader that waits for results, which are lost on their way, and the slice of another reducer."""
    table = Table(3, sums=SumRules(first_within_s=60.0))
    leader = table.opener()
    leader.has_trainer = has_delta
    table.drops = lambda sender, to, message: isinstance(message, ResultReady)
    table.run_until(lambda: bool(leader.sent(Proposal)), 10.0)
    proposal = leader.state.open.proposal
    assert proposal is not None
    return table, leader, next(part for part in proposal.slices if part.reducer != leader.peer), proposal


def _nothing(table: Table, proposal: Proposal, part: SliceSpec) -> ResultReady:
    """The reducer of this slice says that there is nothing to sum."""
    nothing = Root(bytes(32))
    return _result(table.seats[part.reducer], proposal, part, included=(), weight_sum=0, result_hash=nothing)


def test_an_attempt_in_which_nobody_who_is_there_has_anything_to_offer_ends_at_once_and_the_next_one_comes() -> None:
    table, leader, part, proposal = _collecting(has_delta=False)
    leader.hear(table.seats[part.reducer], _nothing(table, proposal, part))
    assert leader.reasons[-1] == "no live member of attempt 0 has anything to offer"
    assert leader.state.open.leading is None
    table.drops = lambda sender, to, message: False
    leader.has_trainer = True
    table.run_until(lambda: table.all_at(1), 10.0)


def test_a_reducer_that_lacks_what_its_leader_offers_loses_its_slice_to_another() -> None:
    table, leader, part, proposal = _collecting(has_delta=True)
    orders = leader.hear(table.seats[part.reducer], _nothing(table, proposal, part))
    (mend,) = [order.message for order in orders if isinstance(order, Send)]
    assert isinstance(mend, Mend)
    assert all(moved.reducer != part.reducer for moved in mend.slices if moved.first_chunk == part.first_chunk)
    assert leader.state.open.leading is not None


def test_who_does_not_lead_the_attempt_does_nothing_about_a_slice_without_contributions() -> None:
    table, leader, part, proposal = _collecting(has_delta=False)
    (member, *_) = table.others(leader)
    assert member.hear(table.seats[part.reducer], _nothing(table, proposal, part)) == ()
    assert member.state.open.proposal == proposal


def test_results_count_only_with_the_signature_of_their_reducer_and_contributions_of_members() -> None:
    table = Table(3)
    acquaint(table)
    mute(table)
    opener = table.opener()
    seat, third = table.others(opener)
    proposal = first_proposal(table)
    seat.hear(opener, proposal)
    part = next(p for p in proposal.slices if p.reducer == third.peer)
    stranger = Included(PeerId("stranger"), 1, state_root(proposal.base), 5, proposal.base, state_root(proposal.base))
    good = _result(third, proposal, part)
    for bad in (
        _result(opener, proposal, part),
        _result(third, proposal, replace(part, stop_chunk=part.stop_chunk + 1)),
        _result(third, proposal, part, included=(stranger,)),
        _result(third, proposal, part, lost_ppm=5),
        replace(good, header=good.header[:-1] + b"!"),
        replace(good, header=b""),
    ):
        assert seat.hear(third, bad) == ()
        assert seat.reasons[-1].startswith("dropped a result")
        assert not seat.state.open.results
    seat.hear(third, good)
    assert set(seat.state.open.results) == {part.first_chunk}


def test_the_result_of_a_restarted_member_is_no_part_of_the_old_exchange() -> None:
    table = Table(3)
    proposal = first_proposal(table)
    part = proposal.slices[0]
    members = tuple(replace(m, incarnation=2) for m in proposal.members)
    message = _result(table.seats[part.reducer], replace(proposal, members=members), part)
    with pytest.raises(RemoteProtocolError, match="strangers"):
        open_result(table.config(table.live()[0].member), proposal, message)


def test_a_mend_keeps_the_results_of_those_who_keep_their_slices() -> None:
    table = Table(3)
    acquaint(table)
    mute(table)
    opener = table.opener()
    seat, _ = table.others(opener)
    proposal = first_proposal(table)
    seat.hear(opener, proposal)
    for part in proposal.slices[:2]:
        reducer = table.seats[part.reducer]
        seat.hear(reducer, _result(reducer, proposal, part))
    first, second, third = proposal.slices
    moved = (first, replace(second, reducer=first.reducer), replace(third, reducer=first.reducer))
    mend = Mend(UNIT, proposal.base, proposal.ballot, 1, moved)
    assert seat.hear(opener, mend) == (BeginExchange(replace(proposal, slices=moved)),)
    assert set(seat.state.open.results) == {first.first_chunk}


def test_a_mend_is_taken_once_from_the_leader_of_the_attempt_and_over_the_whole_vector() -> None:
    table = Table(3)
    acquaint(table)
    mute(table)
    opener = table.opener()
    seat, third = table.others(opener)
    proposal = first_proposal(table)
    seat.hear(opener, proposal)
    moved = (SliceSpec(0, NUM_CHUNKS, seat.peer),)
    mend = Mend(UNIT, proposal.base, proposal.ballot, 1, moved)
    assert seat.hear(third, mend) == ()
    assert seat.hear(opener, replace(mend, slices=(SliceSpec(0, NUM_CHUNKS - 1, seat.peer),))) == ()
    assert seat.hear(opener, mend)
    assert seat.hear(opener, mend) == ()


# --- where others are ---------------------------------------------------------------------------------------------------------


def test_a_message_about_a_committed_base_is_answered_with_its_certificate() -> None:
    table = Table(3)
    proposal = first_proposal(table)
    table.run_until(lambda: table.all_at(2))
    seat, other = table.live()[:2]
    assert seat.hear(other, proposal) == (AnswerWithCertificate(other.peer, proposal.base),)


def test_a_heartbeat_from_further_along_makes_us_ask_and_nothing_else() -> None:
    table = Table(3)
    behind = table.live()[0]
    table.split(behind)
    table.run_until(lambda: max(seat.head.index for seat in table.live()) >= 2)
    ahead = next(seat for seat in table.live() if seat.head.index >= 2)
    before = behind.state.open
    known = known_commits(behind.state.tree, behind.head.commit)
    assert behind.hear(ahead, heartbeat_of(ahead)) == (CatchUp(ahead.peer, known),)
    assert behind.state.open == before


def test_who_opens_on_a_commit_that_we_do_not_know_is_asked_for_it_and_no_vote_is_given() -> None:
    table = Table(3)
    acquaint(table)
    seat, other = table.live()[:2]
    unknown = CommitId(b"u" * 32)
    asked = (CatchUp(other.peer, (table.genesis.commit,)),)
    assert seat.hear(other, PromiseRequest(UNIT, unknown, Ballot(1, other.peer))) == asked
    assert seat.hear(other, PreVoteRequest(UNIT, unknown, Ballot(1, other.peer), 5.0)) == asked
    assert seat.hear(other, Promise(UNIT, unknown, Ballot(1, seat.peer))) == ()
    assert seat.state.open.promised is None


def test_who_was_cut_off_for_some_rounds_catches_up_commit_by_commit_and_contributes_again() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(1))
    behind = next(seat for seat in table.live() if seat is not table.opener())
    table.split(behind)
    table.run_until(lambda: max(seat.head.index for seat in table.live()) >= 4)
    table.heal()
    table.run_until(lambda: behind.head.record is not None and behind.head.record.contributor(behind.peer) is not None)
    assert len(behind.certificates) == behind.head.index


def test_messages_of_another_unit_are_none_of_ours() -> None:
    table = Table(3)
    acquaint(table)
    opener = table.opener()
    (seat, *_) = table.others(opener)
    other_unit = "fragment-9"
    assert seat.hear(opener, replace(first_proposal(table), unit=other_unit)) == ()  # type: ignore[arg-type]
    assert seat.state.open.proposal is None


# --- ballots that use up the numbers ------------------------------------------------------------------------------------------


def test_an_attempt_far_above_all_that_were_heard_of_is_refused() -> None:
    table = Table(3)
    acquaint(table)
    seat, other = table.live()[:2]
    base, high = table.genesis.commit, Ballot(core.MAX_ATTEMPT_JUMP + 1, other.peer)
    for message in (PromiseRequest(UNIT, base, high), Refusal(UNIT, base, high), Promise(UNIT, base, high)):
        assert seat.hear(other, message) == ()
        assert "too high a number" in seat.reasons[-1]
    assert seat.state.open.highest_attempt == 0
    assert seat.state.open.promised is None


# --- what comes late or in another's name -------------------------------------------------------------------------------------


def test_applying_an_older_commit_twice_changes_nothing() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(2))
    seat = table.live()[0]
    certificate = seat.certificates[0]
    before = seat.state
    link = seat.disk.chain[0][0]
    assert seat.feed(Applied(link, certificate, before.state_root, OpenRound())) == ()
    assert seat.state == before


def test_late_answers_about_an_older_base_change_nothing() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(1))
    seat = table.live()[0]
    settle = next(a.settle for a in seat.orders if isinstance(a, GatherBytes))
    before = seat.state
    assert seat.feed(BytesHeld(settle)) == ()
    assert seat.state == before


def test_a_heartbeat_in_anothers_name_is_not_believed() -> None:
    table = Table(3)
    seat, other, third = table.live()
    forged: Heartbeat = replace(heartbeat_of(other), member=third.member)
    seat.hear(other, forged)
    assert seat.state.peers[third.peer].member is None
    assert seat.state.peers[other.peer].member is None


def test_a_heartbeat_of_an_earlier_session_does_not_undo_a_later_one() -> None:
    table = Table(3)
    seat, other = table.live()[:2]
    old = heartbeat_of(other)
    seat.hear(other, replace(old, member=replace(other.member, session=2)))
    seat.hear(other, old)
    known = seat.state.peers[other.peer].member
    assert known is not None
    assert known.session == 2


def test_a_certificate_in_an_envelope_of_another_protocol_version_is_dropped_with_a_reason() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(1))
    certificate = table.live()[0].certificates[0]
    vote = bytearray(certificate.votes[0])
    vote[KEY_BYTES + 1] ^= 1  # the version follows the key
    fresh = Table(3)
    seat, other = fresh.live()[:2]
    assert seat.hear(other, Committed(UNIT, replace(certificate, votes=(bytes(vote),)))) == ()
    assert "dropped a certificate" in seat.reasons[-1]
    assert seat.head.index == 0


def test_how_long_our_upload_took_is_told_in_the_next_heartbeat() -> None:
    table = Table(3)
    seat = table.live()[0]
    seat.feed(ExchangeMeasured(1.25))
    assert heartbeat_of(seat).exchange_ms == 1250


def test_progress_and_time_alone_open_nothing_without_a_quorum_of_the_roster() -> None:
    table = Table(3)
    alone = table.live()[0]
    for seat in table.live()[1:]:
        table.kill(seat)
    for _ in range(40):
        table.now_s += 0.5
        alone.feed(Progressed(10_000, True))
        alone.feed(RoundTicked())
        table.queue.clear()
    assert alone.head.index == 0
    assert alone.sent(Proposal) == []


def test_the_payload_of_every_message_sent_at_the_table_survives_the_wire() -> None:
    table = Table(4)
    table.run_until(lambda: table.all_at(1))
    table.kill(table.opener())
    table.run_until(lambda: table.all_at(2))
    for seat in table.seats.values():
        for action in seat.orders:
            message = getattr(action, "message", None)
            if message is not None:
                assert decode_message(encode_message(message)) == message


def test_a_result_that_was_signed_for_another_run_is_refused() -> None:
    table = Table(3)
    proposal = first_proposal(table)
    part = proposal.slices[0]
    reducer = table.seats[part.reducer]
    message = _result(reducer, proposal, part)
    config = table.config(reducer.member)
    assert open_result(config, proposal, message).reducer == reducer.peer
    payload = open_envelope(
        message.header, verifier=config.verifier, domain=ROUND_DOMAIN, run_id=RUN_ID, now_unix_ms=None
    ).payload
    elsewhere = seal(reducer.signer, ROUND_DOMAIN, b"x" * 32, 0, NEVER_MS, payload)
    with pytest.raises(RemoteProtocolError, match="run"):
        open_result(config, proposal, replace(message, header=elsewhere))


def test_our_own_messages_make_no_peer_of_us() -> None:
    table = Table(3)
    seat = table.live()[0]
    seat.feed(MessageArrived(seat.peer, heartbeat_of(seat), b""))
    assert seat.peer not in seat.state.peers
