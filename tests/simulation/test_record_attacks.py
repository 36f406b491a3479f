"""Attacks of one admitted member, by records, votes and announcements, at a table of honest peers: none succeeds.

Rules: R2, R3, R6, R13, R16, R18, R22 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from protocol.identity.envelope import open_envelope
from protocol.ids import CommitId, PeerId, Root, short
from protocol.rounds import attempt, voting
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.quorum import first_opener
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.messages import (
    Ack,
    Committed,
    DoubleVote,
    PreVote,
    Promise,
    PromiseRequest,
    Proposal,
    ResultHeader,
    ResultReady,
    RoundMessage,
    Settle,
)
from protocol.rounds.messages.record import Attestation, Ballot, CommitRecord, Omission, OmissionCode
from protocol.rounds.messages.wire import (
    commit_id,
    decode_body,
    decode_record,
    encode_body,
    encode_message,
    encode_record,
)
from protocol.rounds.orders import ReportDoubleVote
from protocol.rounds.state import RoundState
from tests.protocol.rounds.made_commits import alone_on, made_spine
from tests.protocol.rounds.round_table import RUN_ID, TARGET_TOKENS, UNIT, Answer, Parcel, Seat, Table
from tests.simulation.signing import HashSigner, HashVerifier

Change = Callable[[CommitRecord, ChainLink], CommitRecord]


def _table(num_peers: int = 5, **numbers: object) -> Table:
    """Honest peers that have committed one round."""
    table = Table(num_peers, longest_interval_s=5.0, **numbers)
    table.run_until(lambda: table.all_at(1), 60.0)
    return table


@contextmanager
def _writes(monkeypatch: pytest.MonkeyPatch, liar: Seat, change: Change) -> Iterator[None]:
    """As long as this lasts, the liar changes each record that it settles, and does not judge it itself."""
    honest = attempt.make_record

    def make(parent: ChainLink, proposal: Proposal, ballot: Ballot, *rest: object) -> CommitRecord:
        record = honest(parent, proposal, ballot, *rest)  # type: ignore[arg-type]
        return change(record, parent) if ballot.peer == liar.peer else record

    with monkeypatch.context() as patched:
        patched.setattr(attempt, "make_record", make)
        patched.setattr(attempt, "record_problem", lambda *_: "")
        yield


def _alone_in_the_roster(record: CommitRecord, _: ChainLink) -> CommitRecord:
    me = record.ballot.peer
    return replace(record, roster=(me,), incarnations=(1,))


def _ends_the_run(record: CommitRecord, parent: ChainLink) -> CommitRecord:
    me, most = record.ballot.peer, 1 << 50
    entries = tuple(
        replace(entry, tokens=most, credited_tokens=most) if entry.peer == me else entry
        for entry in record.contributors
    )
    return replace(_summed(record, parent, entries), weight_cap_tokens=most)


def _credits_itself_more(record: CommitRecord, parent: ChainLink) -> CommitRecord:
    me = record.ballot.peer
    entries = tuple(
        replace(entry, credited_tokens=entry.tokens if entry.peer == me else entry.credited_tokens // 2)
        for entry in record.contributors
    )
    return _summed(record, parent, entries)


def _counts_itself_alone(record: CommitRecord, parent: ChainLink) -> CommitRecord:
    me = record.ballot.peer
    late = tuple(Omission(entry.peer, "", OmissionCode.LATE) for entry in record.contributors if entry.peer != me)
    entries = tuple(entry for entry in record.contributors if entry.peer == me)
    slices = tuple(replace(part, omitted=late) for part in record.slices)
    return _summed(replace(record, slices=slices), parent, entries)


def _takes_a_stranger_in(record: CommitRecord, _: ChainLink) -> CommitRecord:
    stranger = HashSigner(b"nobody admitted this key").peer_id
    roster = tuple(sorted((*record.roster, stranger)))
    return replace(record, roster=roster, incarnations=(1,) * len(roster))


def _names_other_bytes(record: CommitRecord, _: ChainLink) -> CommitRecord:
    first, *rest = record.slices
    return replace(record, slices=(replace(first, result_hash=Root(b"\7" * 32)), *rest))


def _names_other_tokens_of_others(record: CommitRecord, parent: ChainLink) -> CommitRecord:
    me = record.ballot.peer
    entries = tuple(
        entry if entry.peer == me else replace(entry, tokens=1, credited_tokens=1) for entry in record.contributors
    )
    return _summed(record, parent, entries)


def _attests_another_state(record: CommitRecord, _: ChainLink) -> CommitRecord:
    pair = record.attestations[0]
    return replace(record, attested=Attestation(pair.commit, Root(b"\7" * 32)))


def _writes_words(record: CommitRecord, _: ChainLink) -> CommitRecord:
    first, *rest = record.slices
    words = (Omission(record.roster[0], "any words that make the hash come out right"),)
    return replace(record, slices=(replace(first, omitted=words), *rest))


def _raises_the_cap(record: CommitRecord, _: ChainLink) -> CommitRecord:
    return replace(record, weight_cap_tokens=record.weight_cap_tokens * 1000)


def _forgets_the_signatures(record: CommitRecord, _: ChainLink) -> CommitRecord:
    entries = tuple(replace(entry, seal=b"", attests=0) for entry in record.contributors)
    return replace(record, rules=0, contributors=entries, attestations=())


def _summed(record: CommitRecord, parent: ChainLink, entries: tuple[object, ...]) -> CommitRecord:
    changed = replace(record, contributors=entries)  # type: ignore[arg-type]
    credited = sum(entry.credited_tokens for entry in changed.contributors)
    return replace(changed, total_tokens=parent.total_tokens + credited)


@pytest.mark.parametrize(
    "change",
    [
        _alone_in_the_roster,
        _ends_the_run,
        _credits_itself_more,
        _counts_itself_alone,
        _takes_a_stranger_in,
        _names_other_bytes,
        _names_other_tokens_of_others,
        _attests_another_state,
        _writes_words,
        _raises_the_cap,
        _forgets_the_signatures,
    ],
)
def test_a_record_that_says_what_nobody_signed_is_acked_by_nobody_and_the_round_goes_on_without_it(
    change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _table()
    liar = table.opener()
    with _writes(monkeypatch, liar, change):
        honest = table.others(liar)
        table.run_until(lambda: all(seat.head.index >= 3 for seat in honest), 240.0)
    for seat in honest:
        for link, _ in seat.disk.chain:
            assert link.record is not None
            assert change(link.record, _parent(seat, link)) != link.record
            assert len(link.roster) >= 4
            assert link.total_tokens <= 4 * TARGET_TOKENS * link.index


def _answers_first(monkeypatch: pytest.MonkeyPatch, table: Table, liar: Seat) -> None:
    """The liar's pre-votes and promises come before those of all others, so it is in each quorum."""
    deliver, held = table.deliver, dict[int, int]()

    def later(item: Parcel | Answer) -> None:
        is_answer = isinstance(item, Parcel) and isinstance(item.message, PreVote | Promise)
        if is_answer and item.sender != liar.peer and held.setdefault(id(item), 0) < 20:  # type: ignore[union-attr]
            held[id(item)] += 1
            table.queue.append(item)
        else:
            deliver(item)

    monkeypatch.setattr(table, "deliver", later)


def _made_by(liar: Seat, honest: list[Seat]) -> list[Settle]:
    """Records of the liar that honest peers settled."""
    settled = [message for seat in honest for message in seat.sent(Settle) if isinstance(message, Settle)]
    return [message for message in settled if decode_record(message.record).ballot.peer == liar.peer]


@pytest.mark.parametrize("num_peers", [3, 4, 5])
@pytest.mark.parametrize("change", [_alone_in_the_roster, _ends_the_run])
def test_a_lie_that_only_its_leader_acked_is_not_finished_by_the_next_one(
    change: Change, num_peers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The liar promises to all who take over, and names its own record as acked: a single peer's word, which decided nothing."""
    table = _table(num_peers)
    liar, why_not_right = table.opener(), voting._why_not_right
    monkeypatch.setattr(
        voting,
        "_why_not_right",
        lambda state, settle, *rest: "" if _is_own(state, settle, liar) else why_not_right(state, settle, *rest),
    )
    monkeypatch.setattr(voting, "_why_not_fair", lambda *_: "")
    _answers_first(monkeypatch, table, liar)
    honest, begun_s = table.others(liar), table.now_s
    with _writes(monkeypatch, liar, change):
        table.run_until(lambda: all(seat.head.index >= 2 for seat in honest), 120.0)
    assert any(promise.acked is not None for promise in liar.sent(Promise) if isinstance(promise, Promise))
    assert table.now_s - begun_s < 20.0
    assert _made_by(liar, honest) == []


def _is_own(state: RoundState, settle: Settle, liar: Seat) -> bool:
    return settle.ballot.peer == state.config.me.peer == liar.peer


@pytest.mark.parametrize("num_peers", [3, 4, 5])
def test_a_record_of_results_that_only_its_leader_has_is_not_finished_by_the_next_one(
    num_peers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in it is false, so its leader's ack names what others would have to settle again, and could not gather."""
    table = _table(num_peers)
    liar = table.opener()
    table.withheld = table.no_uploads = {liar.peer}
    _answers_first(monkeypatch, table, liar)
    honest = table.others(liar)
    table.run_until(lambda: all(seat.head.index >= 2 for seat in honest), 240.0)
    assert any(promise.acked is not None for promise in liar.sent(Promise) if isinstance(promise, Promise))
    assert _made_by(liar, honest) == []


@pytest.mark.parametrize("cap", [1, 99])
def test_a_leader_whose_cap_counts_everybodys_work_as_next_to_nothing_commits_nothing(
    cap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _table()
    liar, honest = table.opener(), attempt.Proposal

    def proposed(**fields: Any) -> Proposal:
        proposal = honest(**fields)
        return replace(proposal, weight_cap_tokens=cap) if proposal.ballot.peer == liar.peer else proposal

    monkeypatch.setattr(attempt, "Proposal", proposed)
    monkeypatch.setattr(attempt, "low_cap_problem", lambda *_: "")
    table.run_until(lambda: table.all_at(4), 200.0)
    assert any(proposal.weight_cap_tokens == cap for proposal in liar.sent(Proposal) if isinstance(proposal, Proposal))
    records = [link.record for link, _ in liar.disk.chain]
    assert all(record is not None and record.weight_cap_tokens >= 100 for record in records)
    assert any(f"a weight cap of {cap} tokens" in reason for seat in table.others(liar) for reason in seat.reasons)


@pytest.mark.parametrize("tokens", [(100, 100, 100, 100), (100, 100, 100, 10_000)])
def test_what_members_trained_since_their_contributions_holds_up_no_later_attempt(tokens: tuple[int, ...]) -> None:
    """The weight cap follows from what they report as ready, and a record's from what they signed."""
    table = Table(4, longest_interval_s=5.0)
    for seat, number in zip(table.live(), tokens, strict=True):
        seat.tokens = number
    table.drops = lambda sender, to, message: isinstance(message, ResultReady) and message.ballot.attempt == 0
    table.run_until(lambda: all(seat.state.open.contribution is not None for seat in table.live()), 60.0)
    for seat in table.live():
        seat.tokens = 100_000
    table.run_until(lambda: table.all_at(1), 120.0)
    record = table.live()[0].disk.chain[0][0].record
    assert record is not None
    assert sorted(entry.tokens for entry in record.contributors) == sorted(tokens)
    assert record.weight_cap_tokens <= 1_600


def _parent(seat: Seat, link: ChainLink) -> ChainLink:
    links = [seat.disk.genesis, *(each for each, _ in seat.disk.chain)]
    return next(each for each in links if each.commit == link.parent)


@pytest.mark.parametrize(("rounds", "length"), [(1, 64), (6, 64), (6, 6)])
@pytest.mark.parametrize("is_from_genesis", [True, False])
def test_commits_that_a_member_signs_alone_are_followed_by_nobody_who_has_a_quorum(
    rounds: int, length: int, *, is_from_genesis: bool
) -> None:
    table = Table(5, longest_interval_s=5.0)
    table.run_until(lambda: table.all_at(rounds), 120.0)
    liar, *honest = table.live()
    fork = liar.disk.genesis if is_from_genesis else liar.head
    made = alone_on(fork, [liar], length)
    heads = {seat.head.index for seat in honest}
    for seat in honest:
        for each in made:
            seat.hear(liar, Committed(UNIT, each.certificate))
    table.run_until(lambda: all(seat.head.index > max(heads) + 1 for seat in honest), 240.0)
    for seat in honest:
        assert seat.state.tree.path(made[0].link.commit, seat.head.commit) is None
        if is_from_genesis:
            told = f"{short(liar.peer)} sent commits after round 0 that no quorum signed: not followed, ours have one"
            assert told in seat.reasons


def test_commits_of_keys_that_nobody_admitted_are_worth_nothing() -> None:
    table = _table()
    strangers = [Seat(table, HashSigner(b"stranger %d" % number), table.genesis) for number in range(3)]
    for stranger in strangers:
        stranger.start()
    liar, *honest = table.live()
    made = alone_on(table.genesis, strangers, 64, proof=b"of somebody else")
    for seat in honest:
        for each in made:
            seat.hear(liar, Committed(UNIT, each.certificate))
        assert made[0].link.commit not in seat.state.tree.nodes
        assert any("was not admitted to the run" in reason for reason in seat.reasons)
    index = max(seat.head.index for seat in honest)
    table.run_until(lambda: all(seat.head.index > index for seat in honest), 120.0)


def test_no_words_in_a_record_change_who_leads_the_next_round() -> None:
    table = _table()
    record = table.live()[0].disk.chain[-1][0].record
    assert record is not None
    openers = set()
    for number in range(64):
        other = replace(record, next_target_tokens=record.next_target_tokens + number)
        assert (
            commit_id(record.parent, encode_record(other)) != commit_id(record.parent, encode_record(record))
            or not number
        )
        openers.add(first_opener(RUN_ID, other.unit, other.index, other.roster))
    assert len(openers) == 1


def test_promises_that_a_member_asks_for_without_consent_hold_up_nobody() -> None:
    table = _table()
    quiet = Table(5, longest_interval_s=5.0)
    quiet.run_until(lambda: quiet.all_at(1), 60.0)
    liar = next(seat for seat in table.live() if seat is not table.opener())
    for _ in range(60):
        table.tick()
        quiet.tick()
        for seat in table.others(liar):
            opened = seat.state.open
            floor = opened.promised.attempt if opened.promised is not None else 0
            ballot = Ballot(max(opened.highest_attempt, floor) + 1, liar.peer)
            seat.hear(liar, PromiseRequest(UNIT, seat.head.commit, ballot))
    here, there = (max(seat.head.index for seat in each.live()) for each in (table, quiet))
    assert here >= there - 1 > 1


def test_proposals_of_a_take_over_without_consent_are_joined_by_nobody() -> None:
    table = _table()
    opener = table.opener()
    liar = next(seat for seat in table.live() if seat is not opener)
    table.run_until(lambda: bool(opener.sent(Proposal)), 60.0)
    proposal = opener.sent(Proposal)[-1]
    assert isinstance(proposal, Proposal)
    stolen = replace(proposal, ballot=Ballot(proposal.ballot.attempt + 1, liar.peer))
    for seat in table.others(liar):
        seat.hear(liar, replace(stolen, base=seat.head.commit, index=seat.head.index + 1))
        running = seat.state.open.proposal
        assert running is None or running.ballot.peer != liar.peer


def test_a_reducer_that_announces_its_result_and_gives_it_to_nobody_loses_its_slice() -> None:
    table = _table()
    liar = next(seat for seat in table.live() if seat is not table.opener())
    table.withheld = {liar.peer}
    honest, index = table.others(liar), liar.head.index
    table.run_until(lambda: all(seat.head.index >= index + 3 for seat in honest), 240.0)
    records = [link.record for link, _ in honest[0].disk.chain[index:]]
    led_by_others = [record for record in records if record is not None and record.ballot.peer != liar.peer]
    assert led_by_others
    assert all(part.reducer != liar.peer for record in led_by_others for part in record.slices)
    why = f"reducer {short(liar.peer)} announced a result that did not come here; its slice is given to others"
    (first, *_) = [seat for seat in honest if why in seat.reasons]
    assert first.state.barred.no_slices_until[liar.peer] > first.head.index
    later = [message for message in first.sent(Proposal) if isinstance(message, Proposal)][1:]
    assert all(part.reducer != liar.peer for message in later for part in message.slices)


def test_a_reducer_that_writes_false_counts_of_others_into_its_result_is_not_believed() -> None:
    table = _table()
    liar = next(seat for seat in table.live() if seat is not table.opener())
    honest, index = table.others(liar), liar.head.index
    drops = table.drops

    def lies(sender: str, to: str, message: object) -> bool:
        if sender != liar.peer or not isinstance(message, ResultReady):
            return drops(sender, to, message)  # type: ignore[arg-type]
        header = decode_body(ResultHeader, _payload(message.header))
        false = tuple(
            entry if entry.peer == liar.peer else replace(entry, tokens=1, root=Root(b"\7" * 32))
            for entry in header.included
        )
        said = ResultReady(
            message.unit, message.base, message.ballot, liar.sealed(encode_body(replace(header, included=false)))
        )
        if said.header != message.header:
            table.seats[to].hear(liar, said)  # type: ignore[index]
        return True

    table.drops = lies  # type: ignore[assignment]
    begun_s = table.now_s
    table.run_until(lambda: all(seat.head.index >= index + 2 for seat in honest), 240.0)
    assert table.now_s - begun_s < 15.0, "a false result was waited for"
    assert any(f"dropped a result of {short(liar.peer)}" in reason for seat in honest for reason in seat.reasons)
    for link, _ in honest[0].disk.chain[index:]:
        assert link.record is not None
        assert all(entry.tokens == table.seats[entry.peer].tokens for entry in link.record.contributors)


def _payload(envelope: bytes) -> bytes:
    return open_envelope(
        envelope, verifier=HashVerifier(), domain=ROUND_DOMAIN, run_id=RUN_ID, now_unix_ms=None
    ).payload


def test_two_acks_of_one_voter_convict_it_and_nothing_of_it_counts_any_more() -> None:
    table = _table()
    liar, *honest = table.live()
    base, ballot = liar.head.commit, Ballot(0, honest[0].peer)
    one, other = (
        liar.sealed(encode_message(Ack(UNIT, base, ballot, commit_id(base, each), version=1))) for each in (b"1", b"2")
    )
    for seat in honest:
        seat.hear(honest[0], DoubleVote(UNIT, one, other))
        assert seat.state.barred.expelled == {liar.peer}
        assert seat.ordered(ReportDoubleVote)
    index = max(seat.head.index for seat in honest)
    table.run_until(lambda: all(seat.head.index >= index + 2 for seat in honest), 240.0)
    last = honest[0].head.record
    assert last is not None
    assert last.contributor(liar.peer) is None


def test_a_settled_record_of_a_take_over_needs_the_promises_of_a_quorum() -> None:
    table = _table()
    opener = table.opener()
    liar = next(seat for seat in table.live() if seat is not opener)
    index = opener.head.index
    table.run_until(lambda: bool(opener.sent(Settle)), 60.0)
    settle = [each for each in opener.sent(Settle) if isinstance(each, Settle)][-1]
    stolen = replace(settle, ballot=Ballot(settle.ballot.attempt + 7, liar.peer))
    victim = next(seat for seat in table.live() if seat not in (opener, liar))
    before = len(victim.sent(Ack))
    if victim.head.commit == settle.base:
        victim.hear(liar, stolen)
        assert len(victim.sent(Ack)) == before
    table.run_until(lambda: table.all_at(index + 2), 120.0)


def test_a_record_that_cites_a_spine_commit_that_nobody_knows_is_acked_by_nobody_and_its_unit_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else whatever its leader signs alone, and with the followed spine, would come before that record and all that follows it."""
    spine = made_spine()
    table = Table(5, longest_interval_s=5.0, spine=spine.at(spine.left))
    table.run_until(lambda: table.all_at(1), 60.0)
    liar, send, unknown = table.live()[0], table._send, CommitId(b"\7" * 32)
    honest = table.others(liar)

    def citing(seat: Seat, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        if seat is liar and isinstance(message, Proposal):
            message = replace(message, spine=unknown)
        send(seat, to, message)

    monkeypatch.setattr(table, "_send", citing)
    table.run_until(lambda: all(seat.head.index >= 12 for seat in honest), 120.0)
    assert liar.sent(Proposal)
    cited = [link.record.spine for link, _ in honest[0].disk.chain if link.record is not None]
    assert set(cited) == {spine.left.commit}
    assert any("expected a commit of the spine that we follow" in reason for seat in honest for reason in seat.reasons)
