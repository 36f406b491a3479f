"""The readings of `potluck doctor` on the way to the host. Each has a deadline, and none can end the command.

Writes nothing: creates no identity, uses no invite and counts no session.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil
import trio

from averaging.data.shards import parse_dataset
from averaging.network.direct.tls_identity import TlsCredential
from averaging.network.seams.asyncio_thread import open_asyncio_thread, open_plain_nursery
from averaging.network.seams.clocks import SystemClock
from averaging.network.seams.listening import bind_listeners, listen_addresses
from averaging.release import installed_release
from peer.checks.host_core import (
    Answer,
    Flow,
    HostReadings,
    HostRefusal,
    Line,
    NoAnswer,
    OwnPeer,
    PortTaken,
    ReachReport,
)
from peer.checks.machine_core import Unread
from peer.membership.addresses import bulk_port
from peer.membership.coordinator_client import (
    Caller,
    CoordinatorClient,
    CoordinatorEndpoint,
    ProbeProof,
    open_coordinator_client,
)
from peer.membership.host_ways import AsMember, HostWays, host_ways
from peer.membership.host_ways_core import Tried, data_ports, host_in, peer_ports
from peer.membership.kept_addresses import read_kept, with_kept
from peer.membership.saved_membership import is_known, last_run_folder, load_membership, run_folder
from peer.settings.config import PeerConfig
from peer.status.local_view import read_daemon
from protocol.errors import (
    CallTimeout,
    MachineError,
    PotluckError,
    RefusedError,
    RemoteProtocolError,
    RunOverError,
    VersionError,
)
from protocol.host.calls import DIAL_BACK_NONCE_BYTES, MAX_PROBE_BYTES, MAX_PROBE_DOWN_BYTES, MAX_PROBE_UP_BYTES
from protocol.identity.envelope import first_sequence, next_session
from protocol.identity.identity import Identity
from protocol.identity.identity_file import read_identity
from protocol.identity.invite import decode_invite
from protocol.identity.puzzle import read_challenge
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId
from protocol.run.manifest import open_manifest

ALL_WITHIN_S: Final = 30.0
"""The sum of the deadlines below, for a host that is slow in everything."""

GREETING_WITHIN_S: Final = 5.0
FLOW_WITHIN_S: Final = 3.0
"""Deadline in each direction. A line that only moves the first piece in this time is slow, and more detail is not needed."""

FIRST_PIECE_BYTES: Final = 64 << 10
LEAST_FLOW_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Way:
    """The host's address and our proof to it: the invite's secret, or `identity` with its credential. The line of an open run that was
    not joined before has neither.
    """

    endpoint: CoordinatorEndpoint
    identity: Identity
    secret: bytes
    credential: bytes
    needed_bits_per_s: float = 0.0
    ways: HostWays | None = None

    @property
    def proof(self) -> ProbeProof:
        """The proof that we may ask for a probe."""
        return ProbeProof(self.secret, self.credential)

    @property
    def is_needed(self) -> bool:
        """Whether a join is impossible without the host."""
        return not self.credential

    @property
    def is_strangers(self) -> bool:
        """Whether we have no proof yet, and the host gives us a puzzle."""
        return not (self.secret or self.credential)


def find_way(config: PeerConfig, invite_text: str) -> Way | None:
    """The way given by the invite, or else by the last run; None without either. A run that was joined before is probed with its
    credential.

    Raises:
        PotluckError: the invite or the saved run cannot be used, and why.
    """
    if not invite_text:
        folder = last_run_folder(config.state_dir)
        return _known_way(config, folder) if folder is not None else None
    invite = decode_invite(invite_text)
    folder = run_folder(config.state_dir, invite.run_id)
    if is_known(folder):
        return _known_way(config, folder)
    invite.ensure_fresh(time.time())
    endpoint = CoordinatorEndpoint(invite.coordinator_addresses, invite.ca_certificate_der, invite.run_id)
    host = host_in(invite.bootstrap)
    ways = None
    if host is not None:
        ports = peer_ports(invite.bootstrap, host)
        ways = HostWays(host, invite.ca_certificate_der, ports, data_ports(ports, invite.coordinator_addresses))
    return Way(endpoint, Identity(secrets.token_bytes(32)), invite.secret, b"", ways=ways)


def _known_way(config: PeerConfig, folder: Path) -> Way | None:
    saved = load_membership(folder)
    if saved is None:
        return None
    manifest = open_manifest(saved.manifest, verifier=Ed25519Verifier())
    endpoint = CoordinatorEndpoint(saved.addresses, saved.ca_certificate_der, manifest.run_id)
    needed_bits_per_s = manifest.config.needed_mbit_per_s * 1e6
    identity, ways = read_identity(config.state_dir / "identity"), host_ways(saved, PeerId(saved.coordinator_peer_id))
    if saved.tls_key_pem and ways.for_data:
        dataset = parse_dataset(saved.dataset, manifest.dataset_id)
        ways = replace(ways, member=AsMember(TlsCredential(saved.credential, saved.tls_key_pem), dataset.files[0]))
    return Way(endpoint, identity, b"", saved.credential, needed_bits_per_s, ways)


def read_host(config: PeerConfig, invite_text: str) -> HostReadings | None:
    """Take all readings, on the ports that the peer uses; None without an invite and a last run. Blocks for ALL_WITHIN_S at most."""
    try:
        way = find_way(config, invite_text)
    except PotluckError as error:
        return HostReadings(_no_answer(error, is_needed=True))
    return None if way is None else trio.run(_read, with_kept(config), way, own_peer(config))


def own_peer(config: PeerConfig) -> OwnPeer | None:
    """The peer of this state folder, if it runs and takes connections. Blocks for some seconds at most."""
    if config.no_listen:
        return None
    view = read_daemon(config.state_dir)
    if not view.is_running:
        return None
    kept = read_kept(config.state_dir)
    return OwnPeer(kept.listen_port, kept.bulk_port, view.status.get("is_outbound_only") is True)


def _no_answer(error: PotluckError, *, is_needed: bool) -> NoAnswer:
    return NoAnswer(_cause(error), error.remedy, is_needed)


def _cause(error: PotluckError) -> str:
    """The error's finding and expectation, without the remedy."""
    return type(error)(error.found, error.expected).one_line()


async def _read(config: PeerConfig, way: Way, own: OwnPeer | None) -> HostReadings:
    """Ask the host and try its other ports, both at once."""
    tried = list[Tried]()

    async def try_ways() -> None:
        if way.ways is not None:
            tried.extend(await way.ways.try_all())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(try_ways)
        readings = await _read_host(config, way, own)
    return replace(readings, ways=tuple(tried))


async def _read_host(config: PeerConfig, way: Way, own: OwnPeer | None) -> HostReadings:
    with trio.move_on_after(ALL_WITHIN_S):
        return await _ask(config, way, own)
    late = CallTimeout(f"no answer from the host within {ALL_WITHIN_S:.0f} s", "", "try again later")
    return HostReadings(_no_answer(late, is_needed=way.is_needed))


async def _ask(config: PeerConfig, way: Way, own: OwnPeer | None) -> HostReadings:
    caller = Caller(way.identity, _next_sequence, SystemClock())
    try:
        async with (
            open_asyncio_thread() as thread,
            open_coordinator_client(thread, way.endpoint, caller) as client,
        ):
            answer = await _greet(way, client)
            try:
                if way.is_strangers:
                    puzzle = read_challenge(await client.challenge(way.identity.public_key))
                    return HostReadings(answer, puzzle_bits=puzzle.bits)
                reach = own or await reach_of(config, way.proof, client)
                bulk = None if isinstance(reach, OwnPeer) else await _bulk_reach_of(config, way.proof, client, reach)
                line = await _line(way.proof, client)
                return HostReadings(answer, reach, line, bulk=bulk, needed_bits_per_s=way.needed_bits_per_s)
            except (RefusedError, RunOverError) as error:
                return HostReadings(answer, refusal=HostRefusal(_cause(error), error.remedy))
    except PotluckError as error:
        return HostReadings(_no_answer(error, is_needed=way.is_needed or isinstance(error, VersionError)))


async def _next_sequence() -> int:
    """A sequence number from the clock alone. The coordinator judges these calls separately, and the daemon may be running in
    parallel.
    """
    now_unix_s = time.time()
    return first_sequence(next_session(0, now_unix_s)) + int(now_unix_s % 1.0 * (1 << 32))


async def _greet(way: Way, client: CoordinatorClient) -> Answer:
    with trio.move_on_after(GREETING_WITHIN_S * len(way.endpoint.addresses)):
        greeting = await client.greet()
        if not math.isfinite(greeting.ahead_s):
            raise RemoteProtocolError("a host with a valid clock", "seconds since 1970", "tell the host")
        return Answer(client.answers_at, greeting.ahead_s, greeting.release, installed_release())
    raise CallTimeout(
        f"no answer from {', '.join(way.endpoint.addresses)}", "a running `potluck host`", "try again later"
    )


async def reach_of(
    config: PeerConfig, proof: ProbeProof, client: CoordinatorClient
) -> ReachReport | PortTaken | Unread | None:
    """Listen as a peer would, and let the host try to connect; None if the owner takes no connections.

    Raises:
        RefusedError, RunOverError: the host would not admit us.
    """
    if config.no_listen:
        return None
    return await _dialled_back(config, config.listen_port, proof, client)


async def _bulk_reach_of(
    config: PeerConfig, proof: ProbeProof, client: CoordinatorClient, reach: ReachReport | PortTaken | Unread | None
) -> ReachReport | PortTaken | Unread | None:
    """The same for the port of weights and data; None if others cannot connect to us anyway. Raises as `reach_of`."""
    if not isinstance(reach, ReachReport) or not reach.is_reached:
        return None
    port, may_take_another = bulk_port(config.model_copy(update={"listen_port": reach.port}))
    found = await _dialled_back(config, port, proof, client)
    if isinstance(found, PortTaken) and may_take_another:
        return await _dialled_back(config, 0, proof, client)
    return found


async def _dialled_back(
    config: PeerConfig, port: int, proof: ProbeProof, client: CoordinatorClient
) -> ReachReport | PortTaken | Unread:
    host = config.listen_host
    try:
        addresses = await trio.to_thread.run_sync(listen_addresses, host)
        sockets = bind_listeners(addresses, port)
    except OSError as error:
        return PortTaken(f"cannot listen on {host} port {port} ({error.strerror})")
    except MachineError as error:
        return PortTaken(error.found)
    port = int(sockets[0].getsockname()[1])
    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in sockets]
    nonce = secrets.token_bytes(DIAL_BACK_NONCE_BYTES)

    async def say_nonce(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(nonce)

    try:
        async with open_plain_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, say_nonce, listeners)
            found = await client.dial_back(proof, port, nonce)
    except PotluckError as error:
        return _unread(error)
    data_port, _ = bulk_port(config.model_copy(update={"listen_port": port}))
    is_own = found.seen_as in _own_addresses()
    return ReachReport(host, port, found.is_reached, found.seen_as, is_own, config.announce_host, data_port)


def _own_addresses() -> set[str]:
    return {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}


async def _line(proof: ProbeProof, client: CoordinatorClient) -> Line | Unread:
    """Time a bounded number of bytes up, then down."""

    async def up(num_bytes: int, timeout_s: float) -> None:
        await client.move_bytes(proof, num_bytes, 0, timeout_s=timeout_s)

    async def down(num_bytes: int, timeout_s: float) -> None:
        await client.move_bytes(proof, 0, num_bytes, timeout_s=timeout_s)

    try:
        began_s = trio.current_time()
        await up(0, FLOW_WITHIN_S)
        round_trip_s = trio.current_time() - began_s
        return Line(
            await _flow(up, MAX_PROBE_UP_BYTES, round_trip_s), await _flow(down, MAX_PROBE_DOWN_BYTES, round_trip_s)
        )
    except PotluckError as error:
        return _unread(error)


def _unread(error: PotluckError) -> Unread:
    """The error as a missing reading. Raises it if the host would not admit us, which is a finding of its own."""
    if isinstance(error, RefusedError | RunOverError):
        raise error
    return Unread(error.one_line())


async def _flow(move: Callable[[int, float], Awaitable[None]], most_bytes: int, round_trip_s: float) -> Flow:
    """Move pieces that grow fourfold, until the time is over or MAX_PROBE_BYTES have passed. Bytes of an unfinished piece do not
    count.
    """
    num_bytes, seconds, piece_bytes = 0, 0.0, FIRST_PIECE_BYTES
    ends_s = trio.current_time() + FLOW_WITHIN_S
    while num_bytes + piece_bytes <= MAX_PROBE_BYTES:
        began_s = trio.current_time()
        if began_s >= ends_s:
            break
        try:
            await move(piece_bytes, ends_s - began_s)
        except CallTimeout:
            break
        took_s = trio.current_time() - began_s
        seconds += max(took_s - round_trip_s, took_s / 10)
        num_bytes += piece_bytes
        piece_bytes = min(4 * piece_bytes, most_bytes)
    return Flow(num_bytes, max(seconds, LEAST_FLOW_S) if num_bytes else FLOW_WITHIN_S)
