from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from averaging.network.memory.memory_network import MemorySwarm
from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.directory import PeerRecord, Record, member_record_rule, seal_record
from averaging.network.seams.interfaces import DirectoryEntry
from peer.membership.credential_cache import VOTED_WITHIN_COMMITS, CredentialCache, known_standings, recent_voters
from peer.membership.saved_membership import KEPT_ADDRESSES_EACH, KEPT_PEERS
from protocol.errors import RefusedError
from protocol.identity.credential import CertificateAuthority, make_ca, make_request, make_tls_key, open_request
from protocol.identity.identity import Identity
from protocol.identity.standing import ALL_KEEPERS, PeerStanding
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import CommitId, PeerId, RunId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.tensors.model_config import WHOLE_MODEL
from tests.virtual import VirtualClock

RUN = RunId(b"r" * 32)
UNIX_S = 1_700_000_000.0
DAY_S = 86400.0
CA = make_ca(b"c" * 32, now_unix_s=UNIX_S)
STRANGERS_CA = make_ca(b"d" * 32, now_unix_s=UNIX_S)
ALICE, BOB, HOST = Identity(b"a" * 32), Identity(b"b" * 32), PeerId("host")
Clock = trio.testing.MockClock


def _credential(
    identity: Identity,
    authority: CertificateAuthority = CA,
    days: int = 30,
    standing: PeerStanding = PeerStanding.KEEPER,
) -> bytes:
    request = make_request(identity, RUN, make_tls_key(), UNIX_S)
    opened = open_request(request, verifier=Ed25519Verifier(), run_id=RUN, now_unix_s=UNIX_S)
    return authority.issue(opened, RUN, now_unix_s=UNIX_S, days=days, serial=1, standing=standing)


def _roster(identity: Identity, credential: bytes) -> CredentialCache:
    return CredentialCache(RUN, CA.certificate_der, HOST, credential, Ed25519Verifier(), VirtualClock(UNIX_S))


def _entry(
    signer: Identity, credential: bytes, subkey: PeerId | None = None, addresses: tuple[str, ...] = ()
) -> DirectoryEntry:
    value = seal_record(signer, RUN, 1, UNIX_S + 60, PeerRecord(credential, addresses).encode())
    return DirectoryEntry(subkey or signer.peer_id, value, UNIX_S + 60)


async def test_a_directory_record_with_a_good_credential_makes_a_member(autojump_clock: Clock) -> None:
    roster = _roster(ALICE, _credential(ALICE))
    assert not await roster.is_member(BOB.peer_id)
    assert roster.take_records([_entry(BOB, _credential(BOB))]) == (BOB.peer_id,)
    assert await roster.is_member(BOB.peer_id)
    assert await roster.is_member(HOST)


async def test_records_of_others_or_under_another_authority_make_no_member(autojump_clock: Clock) -> None:
    roster = _roster(ALICE, _credential(ALICE))
    wrong = [
        _entry(BOB, _credential(BOB, STRANGERS_CA)),
        _entry(BOB, _credential(ALICE)),
        _entry(ALICE, _credential(BOB), BOB.peer_id),
        DirectoryEntry(BOB.peer_id, b"garbage", UNIX_S + 60),
    ]
    assert roster.take_records(wrong) == ()
    assert not await roster.is_member(BOB.peer_id)
    assert await roster.admits(BOB.peer_id) is None, "it is not in the network yet, and can ask nobody"


async def test_a_peer_nobody_announced_is_asked_for_its_credential(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1))
        alice, bob = _roster(ALICE, _credential(ALICE)), _roster(BOB, _credential(BOB))
        alice.serve(swarm.start(ALICE.peer_id))
        assert not await alice.is_member(BOB.peer_id)  # not there at all
        assert await alice.admits(BOB.peer_id) is None, "whom one cannot ask, one has not refused"
        bob.serve(swarm.start(BOB.peer_id))
        assert await alice.is_member(BOB.peer_id)
        nursery.cancel_scope.cancel()


async def test_a_member_is_one_until_its_credential_ends(autojump_clock: Clock) -> None:
    roster = _roster(ALICE, _credential(ALICE))
    roster.take_records([_entry(BOB, _credential(BOB, days=1))])
    assert await roster.is_member(BOB.peer_id)
    await trio.sleep(2 * 86400)
    assert not await roster.is_member(BOB.peer_id)


async def test_who_votes_on_our_head_stays_a_member_while_the_host_is_away(autojump_clock: Clock) -> None:
    roster = _roster(ALICE, _credential(ALICE))
    carol = Identity(b"c" * 32)
    roster.take_records([_entry(BOB, _credential(BOB, days=1)), _entry(carol, _credential(carol, days=1))])
    roster.rely_on(lambda: (ALICE.peer_id, BOB.peer_id))
    await trio.sleep(0.5 * 86400)
    roster.host_was_heard()
    await trio.sleep(40 * 86400)
    assert await roster.is_member(BOB.peer_id), "nobody could renew its credential"
    assert not await roster.is_member(carol.peer_id), "it has no vote that the run would miss"
    roster.host_was_heard()
    assert not await roster.is_member(BOB.peer_id), "it may ask for a new one again"


async def test_a_voter_that_was_not_seen_before_is_judged_as_of_the_hosts_last_word(autojump_clock: Clock) -> None:
    roster = _roster(ALICE, _credential(ALICE))
    roster.rely_on(lambda: (BOB.peer_id,))
    await trio.sleep(2 * 86400)
    assert roster.take_records([_entry(BOB, _credential(BOB, days=1))]) == (BOB.peer_id,)


def _address(identity: Identity, number: int = 1) -> str:
    return f"/ip4/192.0.2.{number}/tcp/4001/p2p/{identity.peer_id}"


def _listed(identity: Identity, *addresses: str) -> DirectoryEntry:
    return _entry(identity, _credential(identity), addresses=addresses)


async def test_a_peers_own_record_tells_others_where_it_listens(autojump_clock: Clock) -> None:
    alice, bob = _roster(ALICE, _credential(ALICE)), _roster(BOB, _credential(BOB))
    value = bob.record(BOB, 1, UNIX_S + 60, [_address(BOB)])
    assert alice.take_records([DirectoryEntry(BOB.peer_id, value, UNIX_S + 60)]) == (BOB.peer_id,)
    assert alice.lasting_addresses() == (_address(BOB),)
    assert alice.listed_experts() == {BOB.peer_id: ()}
    changed = bob.own_changed
    bob.hold((1, 2))
    assert changed.is_set()
    assert not bob.own_changed.is_set()
    alice.take_records([DirectoryEntry(BOB.peer_id, bob.record(BOB, 2, UNIX_S + 60), UNIX_S + 60)])
    assert alice.listed_experts() == {BOB.peer_id: (1, 2)}


async def test_a_peers_own_record_tells_others_where_it_takes_bulk_while_it_is_listed(autojump_clock: Clock) -> None:
    alice, bob = _roster(ALICE, _credential(ALICE)), _roster(BOB, _credential(BOB))
    here = (BulkAddress("192.0.2.1", 4242),)
    assert alice.bulk_addresses(BOB.peer_id) == ()
    value = bob.record(BOB, 1, UNIX_S + 60, [_address(BOB)], here)
    alice.take_records([DirectoryEntry(BOB.peer_id, value, UNIX_S + 60)])
    assert alice.bulk_addresses(BOB.peer_id) == here
    alice.take_records([])
    assert alice.bulk_addresses(BOB.peer_id) == ()


async def test_lasting_addresses_are_those_of_the_members_listed_now_the_longest_listed_first(
    autojump_clock: Clock,
) -> None:
    roster = _roster(ALICE, _credential(ALICE))
    assert roster.lasting_addresses() == ()
    carol, dave = Identity(b"c" * 32), Identity(b"d" * 32)
    stranger = _entry(dave, _credential(dave, STRANGERS_CA), addresses=(_address(dave),))
    roster.take_records([_listed(carol, _address(carol)), stranger])
    roster.take_records([_listed(BOB, _address(BOB)), _listed(carol, _address(carol)), stranger])
    assert roster.lasting_addresses() == (_address(carol), _address(BOB))
    roster.take_records([_listed(BOB, _address(BOB, 2)), _listed(carol)])
    assert roster.lasting_addresses() == (_address(BOB, 2),)
    roster.take_records([])
    assert roster.lasting_addresses() == ()


async def test_no_more_addresses_are_kept_than_are_worth_trying(autojump_clock: Clock) -> None:
    roster = _roster(ALICE, _credential(ALICE))
    peers = [Identity(bytes([100 + number]) * 32) for number in range(KEPT_PEERS + 1)]
    wordy = tuple(_address(peers[0], number) for number in range(KEPT_ADDRESSES_EACH + 1))
    roster.take_records([_listed(peers[0], *wordy), *(_listed(peer, _address(peer)) for peer in peers[1:])])
    kept = roster.lasting_addresses()
    assert kept[:KEPT_ADDRESSES_EACH] == wordy[:KEPT_ADDRESSES_EACH]
    assert kept[KEPT_ADDRESSES_EACH:] == tuple(_address(peer) for peer in peers[1:KEPT_PEERS])


async def test_a_newer_credential_is_shown_and_taken_by_those_who_knew_the_older_one(autojump_clock: Clock) -> None:
    alice, bob = _roster(ALICE, _credential(ALICE)), _roster(BOB, _credential(BOB, days=1))
    alice.take_records([DirectoryEntry(BOB.peer_id, bob.record(BOB, 1, UNIX_S + 60), UNIX_S + 60)])
    newer = _credential(BOB, days=30)
    bob.show(newer)
    assert bob.own_credential == newer
    alice.take_records([DirectoryEntry(BOB.peer_id, bob.record(BOB, 2, UNIX_S + 60), UNIX_S + 60)])
    await trio.sleep(2 * 86400)
    assert await alice.is_member(BOB.peer_id)


# --- after a restart ----------------------------------------------------------------------------------------------------------


def _restarted(host_heard_s: float) -> CredentialCache:
    """A process that starts at UNIX_S + 40 days; the host was heard last at `host_heard_s`, before it."""
    clock = VirtualClock(UNIX_S + 40 * DAY_S)
    return CredentialCache(RUN, CA.certificate_der, HOST, _credential(ALICE), Ed25519Verifier(), clock, host_heard_s)


async def test_after_a_restart_while_the_host_is_away_voters_are_judged_as_of_its_last_word(
    autojump_clock: Clock,
) -> None:
    roster, carol = _restarted(UNIX_S + DAY_S), Identity(b"c" * 32)
    entries = [_entry(BOB, _credential(BOB, days=2)), _entry(carol, _credential(carol, days=2))]
    assert roster.take_records(entries) == (), "nobody is known to vote yet"
    roster.rely_on(lambda: (BOB.peer_id,))
    assert roster.take_records(entries) == (BOB.peer_id,)
    roster.host_was_heard()
    assert roster.take_records(entries) == ()


async def test_a_voter_whose_credential_had_ended_before_the_hosts_last_word_is_none(autojump_clock: Clock) -> None:
    roster = _restarted(UNIX_S + 5 * DAY_S)
    roster.rely_on(lambda: (BOB.peer_id,))
    assert roster.take_records([_entry(BOB, _credential(BOB, days=2))]) == ()


async def test_a_last_word_from_the_future_counts_as_one_of_now(autojump_clock: Clock) -> None:
    roster = _restarted(UNIX_S + 400 * DAY_S)
    roster.rely_on(lambda: (BOB.peer_id,))
    assert roster.host_heard_s == UNIX_S + 40 * DAY_S
    assert roster.take_records([_entry(BOB, _credential(BOB, days=2))]) == ()


async def test_the_directory_keeps_records_of_voters_while_the_host_is_away_and_of_nobody_else_whose_time_is_over(
    autojump_clock: Clock,
) -> None:
    roster, carol = _roster(ALICE, _credential(ALICE)), Identity(b"c" * 32)
    rule = member_record_rule(Ed25519Verifier(), RUN, CA.certificate_der, roster.judged_as_of_s, roster.is_banned)
    roster.rely_on(lambda: (BOB.peer_id,))

    def reason(identity: Identity, now_s: float) -> str:
        credential = _credential(identity, days=1)
        value = seal_record(identity, RUN, 1, now_s + 60, PeerRecord(credential).encode())
        return rule(Record(identity.peer_id, value, now_s + 60), now_s)

    now_s = UNIX_S + 3 * DAY_S
    assert reason(BOB, now_s) == ""
    assert "ended" in reason(carol, now_s)
    await trio.sleep(3 * DAY_S)
    roster.host_was_heard()
    assert "ended" in reason(BOB, now_s)


# --- bans ---------------------------------------------------------------------------------------------------------------------


async def test_a_banned_peer_is_no_member_is_not_listed_and_is_not_asked_again(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1))
        alice, bob = _roster(ALICE, _credential(ALICE)), _roster(BOB, _credential(BOB))
        alice.serve(swarm.start(ALICE.peer_id))
        bob.serve(swarm.start(BOB.peer_id))
        assert alice.take_records([_listed(BOB, _address(BOB))]) == alice.listed() == (BOB.peer_id,)
        alice.ban([BOB.peer_id])
        num_messages = swarm.num_messages
        assert not await alice.is_member(BOB.peer_id)
        assert swarm.num_messages == num_messages
        assert alice.take_records([_listed(BOB, _address(BOB))]) == alice.listed() == alice.lasting_addresses() == ()
        nursery.cancel_scope.cancel()


async def test_a_banned_voter_has_no_grace_and_no_place_in_the_directory(autojump_clock: Clock) -> None:
    roster = _roster(ALICE, _credential(ALICE))
    rule = member_record_rule(Ed25519Verifier(), RUN, CA.certificate_der, roster.judged_as_of_s, roster.is_banned)
    entry = _entry(BOB, _credential(BOB))
    assert rule(Record(BOB.peer_id, entry.value, entry.expires_unix_s), UNIX_S) == ""
    roster.rely_on(lambda: (BOB.peer_id,))
    roster.ban([BOB.peer_id])
    await trio.sleep(2 * DAY_S)
    assert not await roster.is_member(BOB.peer_id)
    assert "banned" in rule(Record(BOB.peer_id, entry.value, entry.expires_unix_s), UNIX_S)


async def test_the_coordinator_is_a_member_whatever_is_said_of_it(autojump_clock: Clock) -> None:
    roster = _roster(ALICE, _credential(ALICE))
    roster.ban([HOST])
    assert await roster.is_member(HOST)


def test_who_voted_lately_is_relied_on_also_when_a_later_roster_left_it_out() -> None:
    def link(index: int, *peers: str) -> ChainLink:
        return ChainLink(WHOLE_MODEL, CommitId(bytes([index]) * 32), index, tuple(map(PeerId, peers)), 0, 1)

    lineage = [link(0, "gone"), *(link(index, "a", "b") for index in range(1, VOTED_WITHIN_COMMITS)), link(90, "a")]
    assert recent_voters(lineage) == {"a", "b"}
    assert recent_voters(lineage[:-1]) == {"a", "b", "gone"}
    assert recent_voters([]) == frozenset()


async def test_a_convicted_peer_is_as_a_banned_one_with_the_host_away_and_no_ban_of_the_host(
    autojump_clock: Clock,
) -> None:
    roster = _roster(ALICE, _credential(ALICE))
    entry = _entry(BOB, _credential(BOB))
    roster.take_records([entry])
    rule = member_record_rule(Ed25519Verifier(), RUN, CA.certificate_der, roster.judged_as_of_s, roster.is_banned)
    roster.ban([BOB.peer_id], by_host=False)
    assert roster.is_banned(BOB.peer_id)
    assert (roster.listed(), roster.num_banned) == ((), 0)
    assert await roster.admits(BOB.peer_id) is False
    assert roster.take_records([entry]) == ()
    assert "banned" in rule(Record(BOB.peer_id, entry.value, entry.expires_unix_s), UNIX_S)
    roster.ban([HOST])
    assert roster.is_banned(BOB.peer_id), "the host's list does not take it back"


async def test_standings_are_those_of_the_newest_credentials_and_keepers_are_not_among_them(
    autojump_clock: Clock,
) -> None:
    roster = _roster(ALICE, _credential(ALICE))
    roster.take_records([_entry(BOB, _credential(BOB))])
    assert known_standings(roster, ALICE.peer_id, CA.certificate_der) is ALL_KEEPERS
    for standing in (PeerStanding.STRANGER, PeerStanding.MEMBER, PeerStanding.KEEPER):
        roster.take_records([_entry(BOB, _credential(BOB, standing=standing))])
        expected = {} if standing is PeerStanding.KEEPER else {BOB.peer_id: standing}
        found = roster.standings
        assert {peer: each for peer, each in found.items() if each is not PeerStanding.KEEPER} == expected


async def test_our_own_standing_is_that_of_our_newest_credential(autojump_clock: Clock) -> None:
    roster = _roster(ALICE, _credential(ALICE, standing=PeerStanding.STRANGER))
    assert known_standings(roster, ALICE.peer_id, CA.certificate_der) == {ALICE.peer_id: PeerStanding.STRANGER}
    roster.show(_credential(ALICE, standing=PeerStanding.MEMBER))
    assert known_standings(roster, ALICE.peer_id, CA.certificate_der) == {ALICE.peer_id: PeerStanding.MEMBER}
    roster.show(_credential(ALICE, STRANGERS_CA))
    with pytest.raises(RefusedError):
        known_standings(roster, ALICE.peer_id, CA.certificate_der)
