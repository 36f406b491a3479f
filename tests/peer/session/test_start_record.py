"""The start of a run at a peer that was admitted before it: from the host, or from a member, believed from the host's hand only."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
import trio
import trio.testing

from averaging.data.shards import DatasetManifest, ShardEntry
from averaging.network.memory.memory_network import MemoryNetwork, MemorySwarm
from averaging.rounds.traffic.directory_keys import DirectoryKeys
from averaging.rounds.traffic.discovery import DirectoryPoller
from peer.membership.credential_cache import CredentialCache
from peer.membership.joining import Membership
from peer.membership.saved_membership import SavedMembership, load_membership, save_membership
from peer.session.start_record import START_CHANNEL, StartSearch, _for_what
from peer.status.reporting import Reporter
from peer.status.status_board import StatusBoard
from peer.status.status_of import Sources, status_of
from protocol.errors import PeerUnreachable, RemoteProtocolError, UnreachableError
from protocol.host.calls import NO_COMMIT, START_DOMAIN, RunNews
from protocol.host.reports import PeerReport, ReportReply, StartNews
from protocol.identity.credential import make_ca, make_request, make_tls_key, open_request
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId
from protocol.run.manifest import default_run_toml, parse_run_config, sign_manifest
from tests.protocol.run.made_manifest import manifest_of
from tests.virtual import InlineOffload, VirtualClock

UNIX_S = 1_700_000_000.0
CA = make_ca(b"c" * 32, now_unix_s=UNIX_S)
HOST, FORGER = Identity(b"h" * 32), Identity(b"f" * 32)
ALICE, BOB, CAROL, STRANGER = (Identity(letter * 32) for letter in (b"1", b"2", b"3", b"4"))
DATASET = DatasetManifest(
    source="text",
    num_documents=1,
    licence="none",
    shards=[ShardEntry(sha256=sha256(b"ab").hexdigest(), num_tokens=1, split=split) for split in ("train", "heldout")],
)
MANIFEST = manifest_of(
    parse_run_config(default_run_toml()),
    dataset_id=DATASET.dataset_id,
    host_public_key=HOST.public_key.hex(),
    ca_certificate_sha256=sha256(CA.certificate_der).hexdigest(),
)
RUN = MANIFEST.run_id
START = seal(HOST, START_DOMAIN, RUN, 0, NEVER_MS, b"the start")
FORGED = seal(FORGER, START_DOMAIN, RUN, 0, NEVER_MS, b"another start")
SOON_S = 15.0
Clock = trio.testing.MockClock


class HostLine:
    """The coordinator as a peer's client shows it: it tells what `start` is every ten seconds, unless it is away. An old one tells it
    to those alone that watch.
    """

    def __init__(self, start: bytes = b"", *, is_away: bool = False, is_old: bool = False) -> None:
        self.start = start
        self.is_away, self.is_old = is_away, is_old
        self.reports: list[PeerReport] = []
        self.num_watches = 0

    async def _answer(self, after_s: float) -> None:
        await trio.sleep(after_s)
        if self.is_away:
            raise UnreachableError("no coordinator answers", "a running host")

    async def report(self, report: PeerReport, _credential: bytes = b"") -> ReportReply:
        await self._answer(0.1)
        self.reports.append(report)
        if self.is_old:
            return ReportReply("gathering", NO_COMMIT, 0, want_from_index=1)
        start = StartNews("1 of at least 2 are ready", self.start)
        return ReportReply("gathering", NO_COMMIT, 0, want_from_index=1, again_in_s=10.0, start=start)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[HostLine]:
        await self._answer(0.1)
        self.num_watches += 1
        yield self

    async def next(self) -> RunNews:
        await self._answer(10.0)
        return RunNews("waiting", "1 of at least 2 are ready", NO_COMMIT, 0, 0, self.start)


@dataclass
class Peer:
    """One peer that looks for the start of the run."""

    folder: Path
    network: MemoryNetwork
    roster: CredentialCache
    sources: Sources
    search: StartSearch

    @property
    def kept(self) -> bytes:
        """The start record on disk."""
        saved = load_membership(self.folder)
        return saved.start_record if saved is not None else b""

    async def find(self, host: HostLine) -> bytes:
        reporter = Reporter(host, self.sources, lambda: None)  # type: ignore[arg-type]
        return await self.search.find(host, reporter)  # type: ignore[arg-type]


def _credential(identity: Identity) -> bytes:
    request = make_request(identity, RUN, make_tls_key(), UNIX_S)
    opened = open_request(request, verifier=Ed25519Verifier(), run_id=RUN, now_unix_s=UNIX_S)
    return CA.issue(opened, RUN, now_unix_s=UNIX_S, days=30, serial=1)


def membership_of(credential: bytes, start_record: bytes = b"") -> Membership:
    """As it was saved."""
    saved = SavedMembership.model_construct(
        addresses=("127.0.0.1:7000",),
        ca_certificate_der=CA.certificate_der,
        tls_key_pem=b"key",
        credential=credential,
        manifest=sign_manifest(MANIFEST, HOST),
        dataset=DATASET.canonical_bytes(),
        start_record=start_record,
        coordinator_peer_id=HOST.peer_id,
        bootstrap=(),
    )
    return Membership(saved, MANIFEST, DATASET)


async def _peer(swarm: MemorySwarm, identity: Identity, folder: Path, start_record: bytes = b"") -> Peer:
    """Admitted, listed in the directory, and with this start record on disk."""
    membership = membership_of(_credential(identity), start_record)
    saved = membership.saved
    own_folder = folder / identity.peer_id
    save_membership(own_folder, saved)
    clock, network = VirtualClock(UNIX_S), swarm.start(identity.peer_id)
    roster = CredentialCache(RUN, CA.certificate_der, HOST.peer_id, saved.credential, Ed25519Verifier(), clock)
    roster.serve(network)
    until_s = clock.unix_s() + 3600.0
    record = roster.record(identity, 1, until_s)
    assert await network.publish(DirectoryKeys(RUN).lobby, identity.peer_id, record, expires_unix_s=until_s)
    board = StatusBoard(identity.peer_id, clock, UNIX_S)
    search = StartSearch(
        own_folder, membership, DirectoryPoller(network, DirectoryKeys(RUN)), roster, InlineOffload(), board
    )
    return Peer(own_folder, network, roster, Sources(board), search)


@asynccontextmanager
async def _swarm() -> AsyncIterator[MemorySwarm]:
    async with trio.open_nursery() as nursery:
        yield MemorySwarm(nursery, random.Random(1))
        nursery.cancel_scope.cancel()


async def test_who_waits_when_the_host_is_gone_learns_of_the_start_from_a_member_keeps_it_and_passes_it_on(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with _swarm() as swarm:
        bob, gone = await _peer(swarm, BOB, tmp_path, START), HostLine(is_away=True)
        assert await bob.find(gone) == START
        alice = await _peer(swarm, ALICE, tmp_path)
        with trio.fail_after(SOON_S):
            assert await alice.find(gone) == START
        assert alice.kept == START
        swarm.kill(BOB.peer_id)
        carol = await _peer(swarm, CAROL, tmp_path)
        with trio.fail_after(2 * SOON_S):
            assert await carol.find(gone) == START


async def test_a_peer_that_waits_learns_of_a_start_that_a_member_hears_of_only_later(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with _swarm() as swarm:
        alice, bob = await _peer(swarm, ALICE, tmp_path), await _peer(swarm, BOB, tmp_path)
        host = HostLine()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bob.find, host)
            nursery.start_soon(alice.find, HostLine(is_away=True))
            await trio.sleep(60.0)
            assert status_of(alice.sources).state == "waiting"
            host.start = START
            nursery.cancel_scope.deadline = trio.current_time() + 2 * SOON_S
        assert alice.kept == START


@pytest.mark.parametrize("is_old", [False, True])
async def test_the_host_tells_of_the_start_where_no_member_is_and_only_an_old_one_is_watched(
    tmp_path: Path, autojump_clock: Clock, is_old: bool
) -> None:
    async with _swarm() as swarm:
        alice, host = await _peer(swarm, ALICE, tmp_path), HostLine(is_old=is_old)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alice.find, host)
            await trio.sleep(25.0)
            assert host.reports[0].is_ready_to_start
            assert status_of(alice.sources).reason == "for the run to start: 1 of at least 2 are ready"
            host.start = START
            nursery.cancel_scope.deadline = trio.current_time() + SOON_S
        assert alice.kept == START
        assert bool(host.num_watches) == is_old


@pytest.mark.parametrize("lie", [FORGED, b"", b"\xffgarbage", START[:-1]])
async def test_what_the_host_did_not_sign_is_not_believed_and_the_next_member_is_asked(
    tmp_path: Path, autojump_clock: Clock, lie: bytes
) -> None:
    async with _swarm() as swarm:
        alice, liar = await _peer(swarm, ALICE, tmp_path), await _peer(swarm, BOB, tmp_path)

        async def answer(_peer: PeerId, _request: bytes) -> bytes:
            return lie

        liar.network.serve_calls(START_CHANNEL, answer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alice.find, HostLine(lie))
            await trio.sleep(60.0)
            assert alice.kept == b""
            carol = await _peer(swarm, CAROL, tmp_path, START)
            assert await carol.find(HostLine(is_away=True)) == START
            nursery.cancel_scope.deadline = trio.current_time() + 2 * SOON_S
        assert alice.kept == START


async def test_a_peer_that_knows_of_the_start_shows_it_to_members_only(tmp_path: Path, autojump_clock: Clock) -> None:
    async with _swarm() as swarm:
        alice, bob = await _peer(swarm, ALICE, tmp_path, START), await _peer(swarm, BOB, tmp_path)
        with pytest.raises(PeerUnreachable):
            await bob.network.call(ALICE.peer_id, START_CHANNEL, b"", timeout_s=1.0)
        await alice.find(HostLine(is_away=True))
        assert await bob.network.call(ALICE.peer_id, START_CHANNEL, b"", timeout_s=1.0) == START
        with pytest.raises(RemoteProtocolError):
            await swarm.start(STRANGER.peer_id).call(ALICE.peer_id, START_CHANNEL, b"", timeout_s=5.0)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("waiting for peers: 1 of at least 2 are ready", "for peers: 1 of at least 2 are ready"),
        ("the start is being signed", "for the run to start: the start is being signed"),
    ],
)
def test_what_a_peer_waits_for_is_said_once(reason: str, told: str) -> None:
    assert _for_what(reason) == told
