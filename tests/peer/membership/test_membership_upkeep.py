from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
import trio.testing

from averaging.network.seams.directory import PeerRecord, seal_record
from averaging.network.seams.interfaces import DirectoryEntry
from peer.membership.credential_cache import CredentialCache
from peer.membership.membership_upkeep import (
    RECONNECT_EVERY_S,
    RECONNECT_FIRST_S,
    REMEMBER_AGAIN_S,
    REMEMBER_HOST_EVERY_S,
    RENEW_EVERY_S,
    MembershipUpkeep,
)
from peer.membership.saved_membership import FILE_NAME, SavedMembership, host_heard_s, load_membership, save_membership
from protocol.errors import UnreachableError
from protocol.identity.credential import (
    CertificateAuthority,
    check_credential,
    make_ca,
    make_request,
    make_tls_key,
    open_request,
)
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, RunId
from tests.virtual import InlineOffload, VirtualClock

RUN = RunId(b"r" * 32)
UNIX_S = 1_700_000_000.0
DAY_S = 86400.0
DAYS = 3
AT_ONCE_S = 0.01
CA, STRANGERS_CA = (make_ca(seed * 32, now_unix_s=UNIX_S) for seed in (b"c", b"d"))
ALICE, BOB = Identity(b"a" * 32), Identity(b"b" * 32)
Clock = trio.testing.MockClock


def _address(port: int) -> str:
    return f"/ip4/192.0.2.1/tcp/{port}/p2p/{BOB.peer_id}"


def _entry(port: int) -> DirectoryEntry:
    request = make_request(BOB, RUN, make_tls_key(), UNIX_S)
    opened = open_request(request, verifier=Ed25519Verifier(), run_id=RUN, now_unix_s=UNIX_S)
    credential = CA.issue(opened, RUN, now_unix_s=UNIX_S, days=30, serial=1)
    value = seal_record(BOB, RUN, port, UNIX_S + 60, PeerRecord(credential, (_address(port),)).encode())
    return DirectoryEntry(BOB.peer_id, value, UNIX_S + 60)


@dataclass
class Host:
    """Issues credentials when asked, unless it is away."""

    clock: VirtualClock
    is_away: bool = False
    days: float = DAYS
    authority: CertificateAuthority = CA
    asked_days: list[float] = field(default_factory=list)

    async def renew(self, request: bytes) -> bytes:
        now_s = self.clock.unix_s()
        self.asked_days.append((now_s - UNIX_S) / DAY_S)
        if self.is_away:
            raise UnreachableError("no coordinator answers", "a running one")
        opened = open_request(request, verifier=Ed25519Verifier(), run_id=RUN, now_unix_s=now_s)
        return self.authority.issue(opened, RUN, now_unix_s=now_s, days=self.days, serial=2)


@asynccontextmanager
async def _upkeep(
    folder: Path, host: Host, start: Callable[[MembershipUpkeep], Awaitable[None]]
) -> AsyncIterator[MembershipUpkeep]:
    first = await Host(host.clock, days=host.days).renew(make_request(ALICE, RUN, make_tls_key(), UNIX_S))
    roster = CredentialCache(RUN, CA.certificate_der, PeerId("host"), first, Ed25519Verifier(), host.clock)
    save_membership(
        folder,
        SavedMembership.model_construct(
            addresses=("127.0.0.1:1",),
            ca_certificate_der=CA.certificate_der,
            tls_key_pem=b"first key",
            credential=first,
            manifest=b"manifest",
            dataset=b"dataset",
            start_record=b"",
            coordinator_peer_id="host",
            bootstrap=(),
        ),
    )
    upkeep = MembershipUpkeep(folder, roster, ALICE, RUN, CA.certificate_der, host.clock, InlineOffload())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(start, upkeep)
        yield upkeep
        nursery.cancel_scope.cancel()


def _saved(folder: Path) -> SavedMembership:
    saved = load_membership(folder)
    assert saved is not None
    return saved


def _days_left(credential: bytes, clock: VirtualClock) -> float:
    now_s = clock.unix_s()
    checked = check_credential(credential, CA.certificate_der, peer_id=ALICE.peer_id, run_id=RUN, now_unix_s=now_s)
    return (checked.not_after_unix_s - now_s) / DAY_S


async def test_a_credential_is_renewed_in_the_last_third_of_its_life_kept_and_shown(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    host = Host(VirtualClock(UNIX_S))
    async with _upkeep(tmp_path, host, lambda upkeep: upkeep.keep_credential(host.renew)) as upkeep:
        first = upkeep.roster.own_credential
        await trio.sleep(1.9 * DAY_S)
        assert upkeep.roster.own_credential == first
        assert host.asked_days == []
        await trio.sleep(0.2 * DAY_S)
        newer = upkeep.roster.own_credential
        assert _days_left(newer, host.clock) > 2.8
        assert _saved(tmp_path).credential == newer
        assert _saved(tmp_path).tls_key_pem.startswith(b"-----BEGIN PRIVATE KEY")
        await trio.sleep(10 * DAY_S)
        assert _days_left(upkeep.roster.own_credential, host.clock) > 0.9
        assert len(host.asked_days) <= 6


async def test_while_the_host_is_away_it_is_asked_once_an_hour_and_nothing_else_happens(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    host = Host(VirtualClock(UNIX_S), is_away=True)
    async with _upkeep(tmp_path, host, lambda upkeep: upkeep.keep_credential(host.renew)) as upkeep:
        first = upkeep.roster.own_credential
        await trio.sleep(4 * DAY_S)  # it has ended meanwhile
        hours = (host.asked_days[-1] - host.asked_days[0]) * 24
        assert len(host.asked_days) - 1 <= hours * 3600 / RENEW_EVERY_S + 0.001
        assert host.asked_days[0] >= 1.9
        assert upkeep.roster.own_credential == _saved(tmp_path).credential == first
        host.is_away = False
        await trio.sleep(RENEW_EVERY_S + 1)
        assert _days_left(upkeep.roster.own_credential, host.clock) > 2.8


async def test_a_credential_of_an_hour_is_renewed_before_it_ends_though_the_host_is_away_for_a_while(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    host = Host(VirtualClock(UNIX_S), days=1 / 24)
    async with _upkeep(tmp_path, host, lambda upkeep: upkeep.keep_credential(host.renew)) as upkeep:
        first = upkeep.roster.own_credential
        await trio.sleep(30 * 60)
        assert upkeep.roster.own_credential == first
        host.is_away = True
        await trio.sleep(15 * 60)
        assert len(host.asked_days) >= 1
        host.is_away = False
        upkeep.roster.host_was_heard()
        await trio.sleep(AT_ONCE_S)
        assert _days_left(upkeep.roster.own_credential, host.clock) > 0.04


async def test_a_credential_that_is_no_good_is_not_taken(tmp_path: Path, autojump_clock: Clock) -> None:
    host = Host(VirtualClock(UNIX_S), authority=STRANGERS_CA)
    async with _upkeep(tmp_path, host, lambda upkeep: upkeep.keep_credential(host.renew)) as upkeep:
        first = upkeep.roster.own_credential
        await trio.sleep(2.5 * DAY_S)
        assert host.asked_days
        assert upkeep.roster.own_credential == _saved(tmp_path).credential == first


async def test_where_others_listen_is_remembered_and_outlives_an_empty_listing(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    host = Host(VirtualClock(UNIX_S))
    async with _upkeep(tmp_path, host, MembershipUpkeep.keep_peers) as upkeep:
        await trio.sleep(60.0)
        assert _saved(tmp_path).peer_addresses == ()
        for port in (1, 2):
            upkeep.roster.take_records([_entry(port)])
            await trio.sleep(AT_ONCE_S)
            assert _saved(tmp_path).peer_addresses == (_address(port),)
        upkeep.roster.take_records([])
        await trio.sleep(60.0)
        assert _saved(tmp_path).peer_addresses == (_address(2),)


async def test_a_file_that_cannot_be_changed_stops_nobody_and_is_tried_again(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    host = Host(VirtualClock(UNIX_S))
    async with _upkeep(tmp_path, host, MembershipUpkeep.keep_peers) as upkeep:
        whole = (tmp_path / FILE_NAME).read_bytes()
        (tmp_path / FILE_NAME).write_bytes(b"{")
        upkeep.roster.take_records([_entry(1)])
        await trio.sleep(2 * REMEMBER_AGAIN_S)
        (tmp_path / FILE_NAME).write_bytes(whole)
        await trio.sleep(REMEMBER_AGAIN_S + 1)
        assert _saved(tmp_path).peer_addresses == (_address(1),)


class _Dialled:
    """A network that remembers whom it was told to dial, and fails the first time."""

    def __init__(self) -> None:
        self.dialled: list[tuple[str, ...]] = []

    async def add_addresses(self, addresses: Sequence[str]) -> None:
        await trio.lowlevel.checkpoint()
        self.dialled.append(tuple(addresses))
        if len(self.dialled) == 1:
            raise UnreachableError("nobody answers", "somebody")


async def test_the_host_and_lasting_members_are_dialled_again_and_again(tmp_path: Path, autojump_clock: Clock) -> None:
    network, bootstrap = _Dialled(), ("/ip4/192.0.2.7/tcp/1/p2p/host",)

    async def start(upkeep: MembershipUpkeep) -> None:
        upkeep.roster.take_records([_entry(7)])
        await upkeep.keep_reached(network, bootstrap)  # type: ignore[arg-type]

    async with _upkeep(tmp_path, Host(VirtualClock(UNIX_S)), start):
        await trio.sleep(RECONNECT_FIRST_S + 1)
        assert network.dialled == [(*bootstrap, _address(7))]
        await trio.sleep(3 * RECONNECT_EVERY_S)
        often = len(network.dialled)
        assert often <= 7
        await trio.sleep(10 * RECONNECT_EVERY_S)
    assert network.dialled == [(*bootstrap, _address(7))] * (often + 10)


async def test_a_credential_that_ended_while_the_host_was_away_is_renewed_as_soon_as_it_is_heard(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    host = Host(VirtualClock(UNIX_S), is_away=True)
    async with _upkeep(tmp_path, host, lambda upkeep: upkeep.keep_credential(host.renew)) as upkeep:
        await trio.sleep(4 * DAY_S + RENEW_EVERY_S / 2)
        host.is_away = False
        upkeep.roster.host_was_heard()
        await trio.sleep(1.0)
        assert _days_left(upkeep.roster.own_credential, host.clock) > 2.9


async def test_a_host_that_refuses_is_asked_once_an_hour_however_often_it_is_heard(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    host = Host(VirtualClock(UNIX_S), authority=STRANGERS_CA)
    async with _upkeep(tmp_path, host, lambda upkeep: upkeep.keep_credential(host.renew)) as upkeep:
        await trio.sleep(2 * DAY_S + RENEW_EVERY_S)
        asked = len(host.asked_days)
        for _ in range(100):
            upkeep.roster.host_was_heard()
            await trio.sleep(10.0)
        assert len(host.asked_days) <= asked + 1


async def test_when_the_host_was_heard_is_kept_now_and_then_and_stands_still_while_it_is_away(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    host = Host(VirtualClock(UNIX_S))
    async with _upkeep(tmp_path, host, MembershipUpkeep.keep_host_heard) as upkeep:
        written: list[float] = []
        for _ in range(1000):
            upkeep.roster.host_was_heard()
            await trio.sleep(2.0)
            if host_heard_s(tmp_path) not in written:
                written.append(host_heard_s(tmp_path))
        assert len(written) <= 2 + 2000 / REMEMBER_HOST_EVERY_S
        last_s = host.clock.unix_s()
        await trio.sleep(DAY_S)
        assert last_s - REMEMBER_HOST_EVERY_S - 5 <= host_heard_s(tmp_path) <= last_s


async def test_a_last_word_that_cannot_be_kept_stops_nobody_and_is_tried_again(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    host, place = Host(VirtualClock(UNIX_S)), tmp_path / "host_heard"
    place.mkdir()
    async with _upkeep(tmp_path, host, MembershipUpkeep.keep_host_heard) as upkeep:
        await trio.sleep(1.0)
        place.rmdir()
        await trio.sleep(REMEMBER_HOST_EVERY_S)
        upkeep.roster.host_was_heard()
        await trio.sleep(1.0)
        assert host_heard_s(tmp_path) == int(upkeep.roster.host_heard_s)
