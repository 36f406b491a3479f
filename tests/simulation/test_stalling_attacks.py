"""Attacks of one admitted member that would stop every round: goodbyes, long deadlines, oversize votes and broken records.

Rules: R3, R11, R13, R15 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, PeerId, Root
from protocol.pb import round_pb2
from protocol.rounds.bad_results import may_have_been_acked
from protocol.rounds.lineage.chain import open_ack
from protocol.rounds.lineage.compact import acks_of
from protocol.rounds.messages.bounds import MAX_VOTE_BYTES
from protocol.rounds.messages.messages import (
    Ack,
    Certificate,
    Committed,
    Leave,
    Mend,
    PreVote,
    PreVoteRequest,
    PromiseRequest,
    Proposal,
    Refusal,
    ResultHeader,
    ResultReady,
    RoundMessage,
    Settle,
    SliceSpec,
)
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot
from protocol.rounds.messages.wire import decode_record, encode_body, encode_message, encode_record
from protocol.rounds.participants import LEAST_FOLLOWER_S
from protocol.rounds.schedule.proposal import Voters, make_record
from protocol.rounds.voting import LEAVE_VERSION
from tests.protocol.rounds.made_commits import proposal_on, results_of, signed_record
from tests.protocol.rounds.round_table import (
    NUM_CHUNKS,
    OUTER,
    RUN_ID,
    TARGET_TOKENS,
    UNIT,
    Answer,
    Parcel,
    Seat,
    Table,
    heartbeat_of,
)
from tests.simulation.signing import HashVerifier

PLENTY: Final = 3
"""Rounds that show that the run goes on."""


def _table(num_peers: int = 5, longest_interval_s: float = 5.0) -> Table:
    """Honest peers that have committed one round."""
    table = Table(num_peers, longest_interval_s=longest_interval_s)
    table.run_until(lambda: table.all_at(1), 60.0)
    return table


def _goes_on(table: Table, honest: list[Seat], within_s: float = 120.0) -> None:
    last = max(seat.head.index for seat in honest)
    table.run_until(lambda: all(seat.head.index >= last + PLENTY for seat in honest), within_s)


@pytest.mark.parametrize("attempt", [None, 900, LAST_ATTEMPT])
def test_a_goodbye_with_any_promise_in_it_leaves_a_round_that_can_be_certified(attempt: int | None) -> None:
    """Its leader drops the leaver from the voters. Everybody has to see the goodbye in the certificate, also where a high promise in
    it leaves the leaver in the electorate.
    """
    table = _table()
    leaver = next(seat for seat in table.live() if seat is not table.opener())
    honest, deliver, told = table.others(leaver), table.deliver, set[CommitId]()

    def says_goodbye_before_the_last_result(item: Parcel) -> object:
        message = item.message if isinstance(item, Parcel) else None
        if isinstance(message, ResultReady) and item.to == message.ballot.peer and message.base not in told:
            told.add(message.base)
            promised = None if attempt is None else Ballot(attempt, leaver.peer)
            for seat in honest:
                seat.hear(leaver, Leave(leaver.member, UNIT, message.base, promised, version=LEAVE_VERSION))
            table.drops = lambda sender, to, _: leaver.peer in (sender, to) and sender != to
        return deliver(item)

    table.deliver = says_goodbye_before_the_last_result  # type: ignore[method-assign,assignment]
    _goes_on(table, honest)


def test_a_goodbye_that_only_a_settled_record_carried_is_shown_by_those_who_finish_the_record() -> None:
    table = _table()
    liar, base = table.opener(), table.opener().head
    honest, members = table.others(liar), table.live()
    table.drops = lambda sender, to, _: liar.peer in (sender, to)
    ballot = Ballot(0, liar.peer)
    proposal = proposal_on(base, members, ballot=ballot, slices=(SliceSpec(0, NUM_CHUNKS, liar.peer),))
    results = results_of(proposal, members)
    voters = Voters(frozenset(seat.peer for seat in honest), frozenset([liar.peer]))
    record = encode_record(make_record(base, proposal, ballot, results, voters, OUTER, TARGET_TOKENS))
    liar.disk.results |= {result.result_hash for result in results}
    goodbye = liar.sealed(encode_message(Leave(liar.member, UNIT, base.commit, version=LEAVE_VERSION)))
    for seat in honest:
        seat.hear(liar, proposal)
        seat.hear(liar, Settle(UNIT, base.commit, ballot, record, (), (goodbye,)))
    table.talk()
    assert any(seat.state.open.acked is not None for seat in honest)
    _goes_on(table, honest, 300.0)


def test_a_proposal_that_lets_slices_wait_for_a_day_is_not_joined() -> None:
    table = _table()
    liar = table.opener()
    honest = table.others(liar)
    perform = table.perform

    def patient(seat: Seat, action: object) -> None:
        message = getattr(action, "message", None)
        if seat is liar and isinstance(message, Proposal):
            action = replace(action, message=replace(message, reduce_within_s=86_400.0))  # type: ignore[type-var]
        if seat is liar and isinstance(message, Settle):
            return
        perform(seat, action)  # type: ignore[arg-type]

    table.perform = patient  # type: ignore[method-assign,assignment]
    _goes_on(table, honest, 300.0)


def test_an_ack_with_more_bytes_than_it_needs_is_dropped_and_gets_into_no_certificate() -> None:
    table = _table()
    liar = next(seat for seat in table.live() if seat is not table.opener())
    with pytest.raises(RemoteProtocolError, match="before_commit"):
        Ack(UNIT, liar.head.commit, Ballot(0, liar.peer), liar.head.commit, before_commit=CommitId(bytes(1 << 20)))
    send = table._send

    def padded(seat: Seat, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        if seat is not liar or not isinstance(message, Ack):
            return send(seat, to, message)
        raw = seat.sealed(encode_message(message) + b"\xfa\x7f\x80\x08" + bytes(1024))
        assert len(raw) > MAX_VOTE_BYTES
        table.queue.extendleft(Parcel(seat.peer, peer, message, raw) for peer in to)
        return None

    table._send = padded  # type: ignore[method-assign,assignment]
    _goes_on(table, table.others(liar))
    dropped = [step.remark for seat in table.others(liar) for _, step in seat.steps if "dropped Ack" in step.remark]
    assert dropped
    certificates = [
        sent.certificate for seat in table.live() for sent in seat.sent(Committed) if isinstance(sent, Committed)
    ]
    assert all(len(ack) <= MAX_VOTE_BYTES for certificate in certificates for ack in acks_of(certificate, RUN_ID))


def _without_chunks(record: bytes) -> bytes:
    message = round_pb2.CommitRecord()
    message.ParseFromString(record)
    message.slices[0].first_chunk = message.slices[0].stop_chunk = 0
    return message.SerializeToString(deterministic=True)


def _backwards(record: bytes) -> bytes:
    message = round_pb2.CommitRecord()
    message.ParseFromString(record)
    first, stop = message.slices[0], message.slices[0].stop_chunk
    first.stop_chunk = (1 << 32) - 1
    extra = message.slices.add()
    extra.CopyFrom(first)
    extra.first_chunk, extra.stop_chunk = (1 << 32) - 1, stop
    return message.SerializeToString(deterministic=True)


@pytest.mark.parametrize("broken", [_without_chunks, _backwards, lambda record: record + b"\xfa\x7f\x01x"])
def test_a_record_that_is_no_record_is_refused_wherever_it_comes_from(broken: Callable[[bytes], bytes]) -> None:
    table = _table()
    liar, *honest = table.live()
    record = broken(encode_record(signed_record(liar.head, [liar])))
    with pytest.raises(RemoteProtocolError):
        decode_record(record)
    ack = liar.sealed(encode_message(Ack(UNIT, liar.head.commit, Ballot(0, liar.peer), liar.head.commit)))
    for seat in honest:
        seat.hear(liar, Committed(UNIT, Certificate(record, (ack,))))
        assert not may_have_been_acked(seat.state, record)
    _goes_on(table, honest)


def test_a_member_that_asks_for_one_promise_after_another_and_proposes_nothing_does_not_stop_the_rounds() -> None:
    """It claims to have waited for long, and shows each voter's consent. Honest voters judge by what they saw themselves."""
    table = _table()
    liar = next(seat for seat in table.live() if seat is not table.opener())
    honest, votes = table.others(liar), dict[Ballot, dict[PeerId, bytes]]()

    def keeps_consents(sender: PeerId, to: PeerId, message: RoundMessage) -> bool:
        if to == liar.peer and isinstance(message, PreVote) and not message.objection:
            votes.setdefault(message.ballot, {})[sender] = table.seats[sender].sealed(encode_message(message))
        return False

    table.drops = keeps_consents
    begun = max(seat.head.index for seat in honest)
    for _ in range(60):
        table.tick()
        highest = max(seat.state.open.highest_attempt for seat in honest)
        ballot, base = Ballot(highest + 1, liar.peer), max((seat.head for seat in honest), key=lambda link: link.index)
        for seat in honest:
            seat.hear(liar, PreVoteRequest(UNIT, base.commit, ballot, 1e9))
        table.talk()
        shown = tuple(votes.get(ballot, {}).values())
        for seat in honest:
            seat.hear(liar, PromiseRequest(UNIT, base.commit, ballot, shown))
        table.talk()
    assert max(seat.head.index for seat in honest) - begun >= 15, "a round in two seconds"


def test_a_voter_that_says_it_is_behind_on_a_very_slow_line_makes_one_round_wait_for_it_and_not_every_round() -> None:
    table = _table(longest_interval_s=60.0)
    table.run_until(lambda: table.all_at(2), 60.0)
    liar = table.live()[0]
    honest = table.others(liar)
    table.drops = lambda sender, to, _: sender == liar.peer and to != liar.peer
    begun = max(seat.head.index for seat in honest)
    for _ in range(240):
        for seat in honest:
            beat = heartbeat_of(liar)
            behind = replace(beat.heads[0], head=seat.head.parent, index=seat.head.index - 1, can_contribute=True)
            seat.hear(liar, replace(beat, heads=(behind,), exchange_ms=(1 << 32) - 1))
        table.tick()
    most_s = 60.0 + LEAST_FOLLOWER_S + 1.0
    assert max(seat.head.index for seat in honest) - begun >= (120.0 - most_s) // (LEAST_FOLLOWER_S + 1.0)


def _rounds_in(table: Table, honest: list[Seat], seconds: float) -> int:
    begun = max(seat.head.index for seat in honest)
    table.run_for(seconds)
    return max(seat.head.index for seat in honest) - begun


def test_a_voter_that_refuses_every_ballot_stops_nobody_for_the_others_are_a_quorum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says that it promised a higher ballot, of its own, to everybody that leads."""
    table = _table()
    liar = table.live()[0]
    honest, deliver = table.others(liar), table.deliver

    def refusing(item: Parcel | Answer) -> None:
        if isinstance(item, Parcel) and item.to == liar.peer != item.sender:
            message = item.message
            if isinstance(message, Proposal | Settle | PromiseRequest):
                higher = Ballot(message.ballot.attempt + 1, liar.peer)
                table.seats[item.sender].hear(liar, Refusal(UNIT, message.base, higher))
            if isinstance(message, Proposal):
                return
        deliver(item)

    monkeypatch.setattr(table, "deliver", refusing)
    assert _rounds_in(table, honest, 20.0) >= 20


def test_a_reducer_that_claims_that_nobody_offers_anything_ends_no_attempt_before_its_leader_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its word comes before the leader's own contribution is ready."""
    table = _table()
    liar = table.live()[0]
    reduce = table._reduce

    def empty(seat: Seat, proposal: Proposal) -> None:
        if seat is not liar:
            return reduce(seat, proposal)
        for part in (part for part in proposal.slices if part.reducer == liar.peer):
            ballot, reach, nothing = proposal.ballot, (part.first_chunk, part.stop_chunk), Root(bytes(32))
            header = ResultHeader(UNIT, proposal.base, ballot, *reach, liar.peer, (), (), 0, nothing)
            ready = ResultReady(UNIT, proposal.base, ballot, liar.sealed(encode_body(header)))
            table._send(liar, (ballot.peer,), ready)
        return None

    monkeypatch.setattr(table, "_reduce", empty)
    assert _rounds_in(table, table.others(liar), 20.0) >= 35


def test_a_reducer_that_never_answers_with_a_result_costs_each_leader_one_deadline_and_not_every_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = _table()
    liar = table.live()[0]
    reduce, send = table._reduce, table._send
    monkeypatch.setattr(table, "_reduce", lambda seat, proposal: None if seat is liar else reduce(seat, proposal))

    def never_leads(seat: Seat, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        if seat is not liar or not isinstance(message, Proposal | PreVoteRequest):
            send(seat, to, message)

    monkeypatch.setattr(table, "_send", never_leads)
    honest = table.others(liar)
    table.run_until(lambda: all(liar.peer in seat.state.barred.no_slices_until for seat in honest), 200.0)
    assert _rounds_in(table, honest, 30.0) >= 10


@pytest.mark.parametrize("place", range(3))
def test_two_records_of_one_ballot_are_finished_by_the_next_leader_and_nobody_refuses_it(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half acked one of them and half the other. All who see the promises must choose the same one."""
    table = _table()
    table.run_until(lambda: table.all_at(1 + place), 60.0)
    liar, send, sent = table.opener(), table._send, list[bytes]()
    honest = table.others(liar)
    half = {seat.peer for seat in honest[::2]}

    def two(seat: Seat, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        if seat is not liar:
            send(seat, to, message)
        elif isinstance(message, Settle) and not sent:
            other = encode_record(replace(decode_record(message.record), level=1))
            sent.extend((message.record, other))
            send(seat, tuple(peer for peer in to if peer in half), message)
            send(seat, tuple(peer for peer in to if peer not in half | {liar.peer}), replace(message, record=other))
        elif not sent:
            send(seat, to, message)

    monkeypatch.setattr(table, "_send", two)
    table.run_until(lambda: bool(sent), 60.0)
    table.kill(liar)
    _goes_on(table, honest)
    assert not [reason for seat in honest for reason in seat.reasons if "settles another record" in reason]


def test_an_ack_that_could_never_convict_its_voter_is_counted_by_no_leader() -> None:
    """Else its certificate would be refused by all others, and the round be lost."""
    table = _table()
    liar = table.live()[0]
    honest, send = table.others(liar), table._send

    def hiding(seat: Seat, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        if seat is liar and isinstance(message, Ack):
            message = replace(message, lone=True) if table.now_s % 1.0 else replace(message, version=0)
        send(seat, to, message)

    table._send = hiding  # type: ignore[method-assign]
    assert _rounds_in(table, honest, 10.0) >= 15
    for link, certificate in honest[0].disk.chain[-8:]:
        assert link.record is not None
        if link.record.ballot.peer != liar.peer:
            voters = [open_ack(raw, verifier=HashVerifier(), run_id=RUN_ID)[0] for raw in acks_of(certificate, RUN_ID)]
            assert liar.peer not in voters


def test_a_leader_that_lets_everybody_wait_for_the_longest_interval_and_settles_nothing_has_that_time_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = _table(4, longest_interval_s=60.0)
    liar, send = table.live()[0], table._send

    def stalling(seat: Seat, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        if seat is liar and isinstance(message, Settle | Mend):
            return
        if seat is liar and isinstance(message, Proposal):
            message = replace(message, reduce_within_s=60.0)
        send(seat, to, message)

    monkeypatch.setattr(table, "_send", stalling)
    honest, counted = table.others(liar), [0, 0]
    for half in range(2):
        begun = max(seat.head.index for seat in honest)
        for _ in range(130):
            table.tick(2.0)
        counted[half] = max(seat.head.index for seat in honest) - begun
    assert counted[1] >= 15
