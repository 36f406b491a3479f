"""Bans at a peer: believed from the host only, kept, refused from then on, passed on."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.network.memory.memory_network import MemoryNetwork, MemorySwarm
from averaging.network.seams.directory import PeerRecord, seal_record
from averaging.network.seams.interfaces import DirectoryEntry, Offload
from peer.membership.credential_cache import CredentialCache
from peer.membership.revocations import ASK_EVERY_S, FILE_NAME, NUM_ASKED, REVOCATION_CHANNEL, Revocations
from protocol.errors import RefusedError, RemoteProtocolError
from protocol.identity.credential import make_ca, make_request, make_tls_key, open_request
from protocol.identity.identity import Identity
from protocol.identity.revocation import Revocation, fingerprint, join_entries, seal_revocation
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, RunId
from tests.virtual import InlineOffload, VirtualClock

RUN = RunId(b"r" * 32)
UNIX_S = 1_700_000_000.0
CA = make_ca(b"c" * 32, now_unix_s=UNIX_S)
HOST, FORGER, MALLORY = (Identity(letter * 32) for letter in (b"h", b"f", b"m"))
PEERS = [Identity(bytes([number + 1]) * 32) for number in range(6)]
ALICE, BOB, CAROL = PEERS[:3]
Clock = trio.testing.MockClock
T = TypeVar("T")


def _ban(peer: Identity = MALLORY, number: int = 1, host: Identity = HOST) -> bytes:
    return seal_revocation(host, RUN, Revocation(peer.peer_id, "forged results", int(UNIX_S), number))


def _credential(identity: Identity) -> bytes:
    request = make_request(identity, RUN, make_tls_key(), UNIX_S)
    opened = open_request(request, verifier=Ed25519Verifier(), run_id=RUN, now_unix_s=UNIX_S)
    return CA.issue(opened, RUN, now_unix_s=UNIX_S, days=30, serial=1)


CREDENTIALS = {identity.peer_id: _credential(identity) for identity in (*PEERS, MALLORY)}


def _listed(*identities: Identity) -> Sequence[DirectoryEntry]:
    return [
        DirectoryEntry(i.peer_id, seal_record(i, RUN, 1, UNIX_S + 60, PeerRecord(CREDENTIALS[i.peer_id]).encode()), 0.0)
        for i in identities
    ]


@dataclass
class Peer:
    """One peer's roster and its bans, on the in-memory network."""

    network: MemoryNetwork
    roster: CredentialCache
    bans: Revocations


def _peer(swarm: MemorySwarm, identity: Identity, folder: Path, offload: Offload | None = None) -> Peer:
    verifier, credential = Ed25519Verifier(), CREDENTIALS[identity.peer_id]
    roster = CredentialCache(RUN, CA.certificate_der, HOST.peer_id, credential, verifier, VirtualClock(UNIX_S))
    bans = Revocations(folder, RUN, HOST.public_key, verifier, roster, identity.peer_id, offload or InlineOffload())
    network = swarm.start(identity.peer_id)
    roster.serve(network)
    bans.serve(network)
    return Peer(network, roster, bans)


@asynccontextmanager
async def _peers(folder: Path, num_peers: int = 2) -> AsyncIterator[tuple[list[Peer], trio.Nursery]]:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1))
        peers = [_peer(swarm, identity, folder / str(n)) for n, identity in enumerate(PEERS[:num_peers])]
        yield peers, nursery
        nursery.cancel_scope.cancel()


async def test_who_is_named_by_the_host_is_refused_from_then_on_and_after_a_restart(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with _peers(tmp_path, 1) as ([alice], nursery):
        assert alice.roster.take_records(_listed(MALLORY)) == (MALLORY.peer_id,)
        await alice.bans.take([_ban()])
        assert not await alice.roster.is_member(MALLORY.peer_id)
        assert alice.roster.take_records(_listed(MALLORY)) == ()
        again = _peer(MemorySwarm(nursery, random.Random(1)), ALICE, tmp_path / "0")
        await again.bans.restore()
        assert not await again.roster.is_member(MALLORY.peer_id)
        assert again.bans.known == alice.bans.known == fingerprint(_ban())


async def test_a_ban_is_told_once_and_ours_only_by_the_error_that_ends_us(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with _peers(tmp_path, 1) as ([alice], nursery):
        with capture_logs() as told:
            await alice.bans.take([_ban()])
        assert [event["event"] for event in told] == ["peer_banned"]
        again = _peer(MemorySwarm(nursery, random.Random(1)), ALICE, tmp_path / "0")
        with capture_logs() as told:
            await again.bans.restore()
            await again.bans.take([_ban(ALICE, 2)])
        assert told == []


async def test_what_the_host_did_not_sign_bans_nobody(tmp_path: Path, autojump_clock: Clock) -> None:
    async with _peers(tmp_path, 1) as ([alice], _):
        alice.roster.take_records(_listed(BOB))
        with pytest.raises(RemoteProtocolError, match="did not sign"):
            await alice.bans.take([_ban(BOB, host=FORGER)])
        assert await alice.roster.is_member(BOB.peer_id)
        assert not (tmp_path / "0" / FILE_NAME).exists()


@pytest.mark.parametrize("data", [b"\xff\xffcut off", join_entries([_ban(BOB, host=FORGER)])])
async def test_a_file_that_cannot_be_believed_costs_nothing_but_asking_again(
    tmp_path: Path, autojump_clock: Clock, data: bytes
) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / FILE_NAME).write_bytes(data)
    async with _peers(tmp_path, 1) as ([alice], _):
        await alice.bans.restore()
        assert alice.bans.known == b""
        await alice.bans.take([_ban()])
        assert (tmp_path / "0" / FILE_NAME).read_bytes() == join_entries([_ban()])


async def test_a_disk_that_refuses_keeps_nobody_in(tmp_path: Path, autojump_clock: Clock) -> None:
    (tmp_path / "0").write_bytes(b"a file where the folder should be")
    async with _peers(tmp_path, 1) as ([alice], _):
        await alice.bans.take([_ban()])
        assert alice.roster.is_banned(MALLORY.peer_id)


class _SlowFirstWrite(InlineOffload):
    """A disk on which the first write takes long; what costs time to compute is no write."""

    num_writes = 0

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        if cost_s == 0.0:
            self.num_writes += 1
            await trio.sleep(10.0 if self.num_writes == 1 else 0.0)
        return await super().run(function, cost_s=cost_s)


async def test_a_ban_heard_of_while_an_earlier_one_is_written_is_kept_and_counts_after_a_restart(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with _peers(tmp_path, 1) as ([_], nursery):
        alice = _peer(MemorySwarm(nursery, random.Random(1)), ALICE, tmp_path / "0", _SlowFirstWrite())
        async with trio.open_nursery() as takers:
            takers.start_soon(alice.bans.take, [_ban(MALLORY, 1)])
            await trio.sleep(1.0)
            takers.start_soon(alice.bans.take, [_ban(BOB, 2)])
        again = _peer(MemorySwarm(nursery, random.Random(1)), ALICE, tmp_path / "0")
        await again.bans.restore()
        assert again.roster.is_banned(MALLORY.peer_id)
        assert again.roster.is_banned(BOB.peer_id)


async def test_a_peer_that_joins_hears_of_a_ban_from_another_at_once(tmp_path: Path, autojump_clock: Clock) -> None:
    async with _peers(tmp_path) as ([alice, bob], nursery):
        await alice.bans.take([_ban()])
        nursery.start_soon(bob.bans.gossip, bob.network)
        bob.roster.take_records(_listed(ALICE))
        await trio.sleep(3.0)
        assert bob.roster.is_banned(MALLORY.peer_id)


async def test_a_ban_reaches_everybody_from_one_who_heard_of_it_and_then_nothing_more_is_sent(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with _peers(tmp_path, len(PEERS)) as (peers, nursery):
        for peer in peers:
            peer.roster.take_records(_listed(*PEERS))
            nursery.start_soon(peer.bans.gossip, peer.network)
        await trio.sleep(5.0)
        await peers[0].bans.take([_ban()])
        await trio.sleep((len(PEERS) / NUM_ASKED + 1) * ASK_EVERY_S)
        assert all(peer.roster.is_banned(MALLORY.peer_id) for peer in peers)
        assert await peers[1].network.call(ALICE.peer_id, REVOCATION_CHANNEL, peers[1].bans.known, timeout_s=1.0) == b""


async def test_a_banned_peer_is_not_asked_and_not_answered(tmp_path: Path, autojump_clock: Clock) -> None:
    async with _peers(tmp_path) as ([alice, bob], nursery):
        asked: list[PeerId] = []

        async def note(peer: PeerId, _request: bytes) -> bytes:
            asked.append(peer)
            return b""

        bob.network.serve_calls(REVOCATION_CHANNEL, note)
        alice.roster.take_records(_listed(BOB))
        await alice.bans.take([_ban(BOB)])
        nursery.start_soon(alice.bans.gossip, alice.network)
        await trio.sleep(2 * ASK_EVERY_S)
        assert asked == []
        with pytest.raises(RemoteProtocolError):
            await bob.network.call(ALICE.peer_id, REVOCATION_CHANNEL, b"", timeout_s=1.0)


async def test_a_liar_among_those_who_are_asked_changes_nothing(tmp_path: Path, autojump_clock: Clock) -> None:
    async with _peers(tmp_path, 3) as ([alice, bob, carol], nursery):

        async def lie(_peer: PeerId, _request: bytes) -> bytes:
            return join_entries([_ban(CAROL, host=FORGER)])

        bob.network.serve_calls(REVOCATION_CHANNEL, lie)
        await carol.bans.take([_ban()])
        alice.roster.take_records(_listed(BOB, CAROL))
        nursery.start_soon(alice.bans.gossip, alice.network)
        await trio.sleep(10.0)
        assert await alice.roster.is_member(CAROL.peer_id)
        assert alice.roster.is_banned(MALLORY.peer_id)


async def test_who_finds_itself_banned_ends_and_says_why(tmp_path: Path, autojump_clock: Clock) -> None:
    async with _peers(tmp_path, 1) as ([alice], nursery):
        nursery.start_soon(alice.bans.take, [_ban(ALICE)])
        with pytest.raises(RefusedError, match=r"banned this peer from the run: forged results.*ask the host"):
            await alice.bans.end_when_banned()
