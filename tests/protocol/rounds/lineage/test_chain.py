from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage.chain import attested_roots, link_after, open_ack, verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link
from protocol.rounds.lineage.quorum import tie_holder
from protocol.rounds.lineage.rule_numbers import NEW_RUNS, NEWEST, SIGNED, TURNS
from protocol.rounds.messages.messages import Ack, Certificate, Leave
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.rounds.messages.wire import decode_body, decode_record, encode_body, encode_message, encode_record
from protocol.rounds.voting import LEAVE_VERSION
from tests.protocol.rounds.made_commits import certified, commit_on, record_on, signed_record
from tests.protocol.rounds.round_table import RUN_ID, UNIT, Seat, Table, state_root
from tests.simulation.signing import HashVerifier


def _first_commit(num_peers: int = 3) -> tuple[ChainLink, Certificate]:
    table = Table(num_peers)
    table.run_until(lambda: table.all_at(1))
    return table.genesis, table.live()[0].certificates[0]


def _verify(certificate: Certificate, parent: ChainLink) -> ChainLink:
    return verify_certificate(certificate, parent, verifier=HashVerifier(), run_id=RUN_ID)


def test_a_certificate_of_a_quorum_continues_its_parent() -> None:
    parent, certificate = _first_commit()
    link = _verify(certificate, parent)
    assert link.index == 1
    assert link.total_tokens == 300
    assert len(link.roster) == 3
    assert link.parent == parent.commit
    assert not link.is_lone


def test_too_few_acks_are_refused_and_so_is_one_voter_twice() -> None:
    parent, certificate = _first_commit(5)
    with pytest.raises(RemoteProtocolError, match="quorum"):
        _verify(replace(certificate, votes=certificate.votes[:2]), parent)
    with pytest.raises(RemoteProtocolError, match="quorum"):
        _verify(replace(certificate, votes=certificate.votes[:1] * 5), parent)


def test_a_tampered_ack_or_record_is_refused() -> None:
    parent, certificate = _first_commit()
    vote = bytearray(certificate.votes[0])
    vote[-1] ^= 1
    with pytest.raises(RemoteProtocolError, match="signature"):
        _verify(replace(certificate, votes=(bytes(vote), *certificate.votes[1:])), parent)
    record = replace(decode_record(certificate.record), next_target_tokens=1)
    with pytest.raises(RemoteProtocolError, match="another commit"):
        _verify(replace(certificate, record=encode_record(record)), parent)


def test_a_certificate_does_not_fit_another_parent() -> None:
    parent, certificate = _first_commit()
    with pytest.raises(RemoteProtocolError, match="another base"):
        _verify(certificate, replace(parent, commit=bytes(32)))  # type: ignore[arg-type]


def test_a_record_whose_sums_are_wrong_is_refused() -> None:
    parent, certificate = _first_commit()
    record = decode_record(certificate.record)
    with pytest.raises(RemoteProtocolError, match="tokens"):
        link_after(parent, encode_record(replace(record, total_tokens=record.total_tokens + 1)))
    greedy = replace(record.contributors[0], credited_tokens=10**6)
    inflated = replace(record, contributors=(greedy, *record.contributors[1:]), total_tokens=10**6 + 200)
    with pytest.raises(RemoteProtocolError, match="credited"):
        link_after(parent, encode_record(inflated))


def test_a_start_record_without_the_unit_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="without unit"):
        genesis_link(Table(3).start_record, UnitName("expert-9"))


def test_a_unit_begins_with_its_own_roster_where_the_start_record_gives_it_one() -> None:
    table = Table(3)
    start = decode_body(StartRecord, table.start_record)
    own = (PeerId("one"), PeerId("two"))
    expert = StartUnit(UnitName("expert-0"), bytes(32), start.units[0].state_root, own)
    record = encode_body(replace(start, units=(*start.units, expert)))
    assert genesis_link(record, expert.unit).roster == own
    assert genesis_link(record, UNIT).roster == start.roster
    assert genesis_link(record, expert.unit).commit == genesis_link(record, UNIT).commit


def test_a_start_record_names_the_disks_of_its_founders_or_none() -> None:
    table = Table(3)
    start = decode_body(StartRecord, table.start_record)
    first, second, third = start.roster
    own = (PeerId("one"), first)
    expert = StartUnit(UnitName("expert-0"), bytes(32), start.units[0].state_root, own)
    named = encode_body(replace(start, units=(*start.units, expert), incarnations=(7, 8, 9)))
    assert dict(genesis_link(named, UNIT).disks) == {first: 7, second: 8, third: 9}
    assert dict(genesis_link(named, expert.unit).disks) == {first: 7}
    assert not genesis_link(named, UNIT).may_vote(third, 8)
    older = encode_body(replace(start, incarnations=()))
    assert all(genesis_link(older, UNIT).may_vote(peer, 8) for peer in start.roster)
    with pytest.raises(RemoteProtocolError, match="2 incarnations"):
        replace(start, incarnations=(7, 8))


def test_a_lone_commit_needs_the_ack_of_its_whole_roster_and_no_quorum() -> None:
    table = Table(5)
    pair = table.live()[:2]
    lone = commit_on(table.genesis, pair, lone=True)
    assert _verify(lone.certificate, table.genesis).is_lone
    with pytest.raises(RemoteProtocolError, match="all 2 of its roster"):
        _verify(replace(lone.certificate, acks=lone.certificate.acks[:1]), table.genesis)
    with pytest.raises(RemoteProtocolError, match="envelope"):
        _verify(replace(lone.certificate, leaves=(b"nobody's goodbye",)), table.genesis)
    with pytest.raises(RemoteProtocolError, match="quorum"):
        _verify(commit_on(table.genesis, pair).certificate, table.genesis)


def test_acks_of_two_ballots_are_no_certificate() -> None:
    table = Table(3)
    made = commit_on(table.genesis, table.live())
    seat = table.live()[0]
    ack = Ack(UNIT, table.genesis.commit, Ballot(5, seat.peer), made.link.commit, version=1)
    mixed = (*made.certificate.acks[:1], seat.sealed(encode_message(ack)))
    with pytest.raises(RemoteProtocolError, match="2 ballots"):
        _verify(replace(made.certificate, acks=mixed), table.genesis)


@pytest.mark.parametrize("changes", [{"version": 0}, {"lone": True}])
def test_an_ack_that_could_never_convict_its_voter_makes_no_certificate(changes: dict[str, object]) -> None:
    table = Table(3)
    made = certified(table.genesis, signed_record(table.genesis, table.live()), table.live())
    assert _verify(made.certificate, table.genesis) == made.link
    _, honest = open_ack(made.certificate.acks[0], verifier=HashVerifier(), run_id=RUN_ID)
    ack = encode_message(replace(honest, **changes))  # type: ignore[arg-type]
    acks = [seat.sealed(ack) for seat in table.live()]
    with pytest.raises(RemoteProtocolError, match="never convict it"):
        _verify(replace(made.certificate, acks=tuple(acks)), table.genesis)


def _with_leave(table: Table, leave: Leave, leaver: Seat) -> Certificate:
    """Two acks of a roster of five, and the goodbye of one of the others."""
    voters = [seat for seat in table.live() if seat is not leaver]
    holder = tie_holder(RUN_ID, [seat.peer for seat in voters])
    two = sorted(voters, key=lambda seat: seat.peer != holder)[:2]
    record = record_on(table.genesis, [seat.peer for seat in voters])
    made = certified(table.genesis, record, two)
    return replace(made.certificate, leaves=(leaver.sealed(encode_message(leave)),))


def test_a_goodbye_in_a_certificate_makes_its_quorum_smaller() -> None:
    table = Table(5)
    leaver = table.live()[0]
    leave = Leave(leaver.member, UNIT, table.genesis.commit)
    assert _verify(_with_leave(table, leave, leaver), table.genesis).index == 1


def test_a_goodbye_that_promised_a_higher_ballot_or_stands_on_another_base_does_not() -> None:
    table = Table(5)
    leaver = table.live()[0]
    leave = Leave(leaver.member, UNIT, table.genesis.commit)
    with pytest.raises(RemoteProtocolError, match="quorum"):
        _verify(_with_leave(table, replace(leave, promised=Ballot(1, leaver.peer)), leaver), table.genesis)
    with pytest.raises(RemoteProtocolError, match="goodbye on another base"):
        _verify(_with_leave(table, replace(leave, base=CommitId(b"x" * 32)), leaver), table.genesis)
    other = table.live()[1]
    with pytest.raises(RemoteProtocolError, match="expected its own"):
        _verify(_with_leave(table, replace(leave, member=other.member), leaver), table.genesis)


GOODBYES: Final[dict[str, tuple[dict[str, object], bool]]] = {
    "of this release": ({}, True),
    "of a new disk": ({"incarnation": 2}, False),
    "of an older release": ({"version": 0}, False),
    "of a new disk and an older release": ({"incarnation": 2, "version": 0}, False),
    "that claims to know no vote": ({"attempt": LAST_ATTEMPT}, False),
}
"""By the goodbye: its changes, and whether it makes the quorum of a new record smaller."""


@pytest.mark.parametrize("rules", [SIGNED, TURNS, NEW_RUNS, NEWEST])
@pytest.mark.parametrize("what", GOODBYES)
def test_a_new_record_counts_only_goodbyes_that_tell_all_votes_and_an_old_one_stays_readable(
    what: str, rules: int
) -> None:
    """Two of five acked, and one of the others left."""
    changes, counts = GOODBYES[what]
    table = Table(5)
    leaver, *others = table.live()
    attempt = changes.get("attempt")
    leave = Leave(
        replace(leaver.member, incarnation=changes.get("incarnation", 1)),  # type: ignore[arg-type]
        UNIT,
        table.genesis.commit,
        None if attempt is None else Ballot(attempt, leaver.peer),  # type: ignore[arg-type]
        version=changes.get("version", LEAVE_VERSION),  # type: ignore[arg-type]
    )
    base = replace(table.genesis, rules=rules)
    holder = tie_holder(RUN_ID, [seat.peer for seat in others])
    two = sorted(others, key=lambda seat: seat.peer != holder)[:2]
    record = replace(signed_record(base, others), rules=rules)
    made = certified(base, record, two)
    certificate = replace(made.certificate, leaves=(leaver.sealed(encode_message(leave)),))
    if counts or (rules in (SIGNED, TURNS) and attempt is None):
        assert _verify(certificate, base) == made.link
    else:
        with pytest.raises(RemoteProtocolError, match="quorum"):
            _verify(certificate, base)


@pytest.mark.parametrize(("version", "is_left"), [(LEAVE_VERSION, True), (0, False)])
def test_only_a_goodbye_that_counts_lets_a_new_record_drop_more_voters(version: int, is_left: bool) -> None:
    """Two of five left, and one that is silent is dropped besides."""
    table = Table(5)
    gone, others = table.live()[:2], table.live()[2:]
    leaves = [Leave(seat.member, UNIT, table.genesis.commit, version=version) for seat in gone]
    record = signed_record(table.genesis, others)
    record = replace(record, roster=tuple(seat.peer for seat in others), incarnations=(1,) * len(others))
    made = certified(table.genesis, record, others)
    signed = tuple(seat.sealed(encode_message(leave)) for seat, leave in zip(gone, leaves, strict=True))
    certificate = replace(made.certificate, leaves=signed)
    if is_left:
        assert _verify(certificate, table.genesis) == made.link
    else:
        with pytest.raises(RemoteProtocolError, match="3 voters of 5 now; expected at least 4"):
            _verify(certificate, table.genesis)


def test_a_vote_counts_with_the_disk_that_the_roster_names() -> None:
    table = Table(3)
    made = commit_on(table.genesis, table.live())
    peer = table.live()[0].peer
    assert made.link.may_vote(peer, 1)
    assert not made.link.may_vote(peer, 2)
    assert made.link.may_vote(PeerId("joiner"), 7)
    assert not table.genesis.may_vote(peer, 2)


def test_a_later_commit_attests_the_state_of_an_earlier_one() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(3))
    links = [link for link, _ in table.live()[0].disk.chain[:3]]
    known = attested_roots([table.genesis, *links])
    assert known == {link.commit: state_root(link.commit) for link in (table.genesis, *links[:2])}
