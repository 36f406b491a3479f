from __future__ import annotations

import random

import trio
import trio.testing

from averaging.network.clocks import VirtualClock
from averaging.network.directory import seal_record
from averaging.network.memory_network import MemorySwarm
from averaging.network.seams import DirectoryEntry
from peer.roster import Roster
from protocol.credential import CertificateAuthority, make_ca, make_request, make_tls_key, open_request
from protocol.identity import Ed25519Verifier, Identity
from protocol.ids import PeerId, RunId

RUN = RunId(b"r" * 32)
UNIX_S = 1_700_000_000.0
CA = make_ca(b"c" * 32, now_unix_s=UNIX_S)
STRANGERS_CA = make_ca(b"d" * 32, now_unix_s=UNIX_S)
ALICE, BOB, HOST = Identity(b"a" * 32), Identity(b"b" * 32), PeerId("host")
Clock = trio.testing.MockClock


def _credential(identity: Identity, authority: CertificateAuthority = CA, days: int = 30) -> bytes:
    request = make_request(identity, RUN, make_tls_key(), UNIX_S)
    opened = open_request(request, verifier=Ed25519Verifier(), run_id=RUN, now_unix_s=UNIX_S)
    return authority.issue(opened, RUN, now_unix_s=UNIX_S, days=days, serial=1)


def _roster(identity: Identity, credential: bytes) -> Roster:
    return Roster(RUN, CA.certificate_der, HOST, credential, Ed25519Verifier(), VirtualClock(UNIX_S))


def _entry(signer: Identity, credential: bytes, subkey: PeerId | None = None) -> DirectoryEntry:
    value = seal_record(signer, RUN, 1, UNIX_S + 60, credential)
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


async def test_a_peer_nobody_announced_is_asked_for_its_credential(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1))
        alice, bob = _roster(ALICE, _credential(ALICE)), _roster(BOB, _credential(BOB))
        alice.serve(swarm.start(ALICE.peer_id))
        assert not await alice.is_member(BOB.peer_id)  # not there at all
        bob.serve(swarm.start(BOB.peer_id))
        assert await alice.is_member(BOB.peer_id)
        nursery.cancel_scope.cancel()


async def test_a_member_is_one_until_its_credential_ends(autojump_clock: Clock) -> None:
    roster = _roster(ALICE, _credential(ALICE))
    roster.take_records([_entry(BOB, _credential(BOB, days=1))])
    assert await roster.is_member(BOB.peer_id)
    await trio.sleep(2 * 86400)
    assert not await roster.is_member(BOB.peer_id)
