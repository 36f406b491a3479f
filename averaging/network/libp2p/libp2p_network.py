"""Network over libp2p, trio's side: p2pd is started, watched and restarted here. The asyncio side is libp2p_session."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog
import trio

from averaging.network.direct.direct import DirectOptions, DirectWay, HostNetwork, open_direct
from averaging.network.direct.tls_calls import NotSent
from averaging.network.libp2p.circuits import keep_place
from averaging.network.libp2p.hivemind_parts import import_hivemind
from averaging.network.libp2p.libp2p_directory import Libp2pDirectory
from averaging.network.libp2p.libp2p_listener import allow_open_files
from averaging.network.libp2p.libp2p_session import Session, SessionHooks, open_session
from averaging.network.libp2p.libp2p_stream import RawStream
from averaging.network.libp2p.p2pd import P2pdOptions, P2pdProcess, start_p2pd, with_real_ports
from averaging.network.libp2p.socket_folder import make_socket_folder, socket_roots
from averaging.network.pacing.bulk_lane import BulkLane
from averaging.network.pacing.counters import ControlTally
from averaging.network.seams.asyncio_thread import AsyncioThread, open_plain_nursery
from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.call_limits import Admits, admit_all
from averaging.network.seams.directory import RecordRule
from averaging.network.seams.frames import MAX_REASON_BYTES, Status, placed
from averaging.network.seams.interfaces import (
    MAX_CONTROL_BYTES,
    MAX_FRAME_BYTES,
    BulkKind,
    CallHandler,
    DirectoryEntry,
    Place,
    Stream,
    StreamHandler,
    TookReply,
    TrafficCount,
    Way,
)
from protocol.errors import (
    CallTimeout,
    LocalProtocolError,
    MachineError,
    PotluckError,
    RemoteProtocolError,
    TransportError,
)
from protocol.identity.names import peer_name
from protocol.ids import PeerId

log = structlog.get_logger()

MAX_HANDLER_S: Final = 120.0
MAX_KNOWN_ADDRESSES: Final = 64
PING_TIMEOUT_S: Final = 3.0
RESTART_BACKOFF_S: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
STOP_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Settings of a peer's network.

    Attributes:
        p2pd: identity file, addresses, relays.
        record_rule: the rule for directory records (`signed_record_rule` in a real run).
        initial_peers: multiaddresses of peers that may be up.
        admits: whether to serve a peer on all channels; None if unknown. Called before a request is read. Strangers share few
            places, and get small requests and little time.
        open_channels: call channels that serve everybody.
        upload_bytes_per_s: the owner's cap of the bulk lane.
        direct: bulk goes directly from peer to peer if possible; None to send all of it over libp2p.
    """

    p2pd: P2pdOptions
    record_rule: RecordRule
    initial_peers: tuple[str, ...] = ()
    admits: Admits = admit_all
    open_channels: frozenset[str] = frozenset()
    upload_bytes_per_s: float | None = None
    direct: DirectOptions | None = None


class Libp2pStream:
    """A bulk stream: every frame passes the bulk lane, then the bridge to asyncio."""

    def __init__(self, thread: AsyncioThread, lane: BulkLane, raw: RawStream, channel: str) -> None:
        self._thread = thread
        self._lane = lane
        self._raw = raw
        self._kind = BulkKind(Way.LIBP2P, channel)
        self._held_back: bytes | None = None

    @property
    def remote(self) -> PeerId:
        """The authenticated peer at the other end."""
        return self._raw.remote

    def count_as(self, unit: str, codec: str) -> None:
        """Count later frames under this unit and codec."""
        self._kind = replace(self._kind, unit=unit, codec=codec)

    async def send_frame(self, data: bytes | memoryview, head: bytes = b"") -> None:
        """Send one frame; waits for the limiter and for a slow reader."""
        if (num_bytes := len(head) + len(data)) > MAX_FRAME_BYTES:
            raise LocalProtocolError(f"a frame of {num_bytes} bytes", f"at most {MAX_FRAME_BYTES}")
        await self._lane.pass_up(self._raw.remote, self._kind, num_bytes)
        # copy the caller's memory, because the asyncio loop may keep it after this call
        await self._thread.run(self._raw.send, b"".join((head, data)))

    async def receive_frame(self) -> bytes | None:
        """The next frame, None after the clean end. A cancelled call does not lose a frame that the owner's cap delays."""
        frame = await self._thread.run(self._raw.receive) if self._held_back is None else self._held_back
        if frame is not None:
            self._held_back = frame
            await self._lane.took(self._kind, len(frame))
            self._held_back = None
        return frame

    async def receive_view(self, place: Place | None = None) -> memoryview | None:
        """The next frame as a view."""
        return None if (frame := await self.receive_frame()) is None else placed(frame, place)

    async def aclose(self) -> None:
        """End the stream; a cancelled call resets it instead."""
        try:
            await self._thread.run(self._raw.close)
        except TransportError as error:
            log.debug("stream_close_failed", peer=self.remote, error=error.one_line())


class Libp2pNetwork:
    """A Network over libp2p. Made by `open_libp2p_network`. Its session is replaced when p2pd dies; calls wait for the next one.

    Attributes:
        thread: the bridge to asyncio.
        lane: limiters and counters of the bulk lane.
        control: counters of the control lane.
        directory: publishes and looks up records.
        direct: the direct way; None if there is none.
        p2pd_pid: process id of the running p2pd; None while it is being restarted.
    """

    def __init__(self, thread: AsyncioThread, options: NetworkOptions, peer_id: PeerId) -> None:
        self.thread = thread
        self.lane = BulkLane(options.upload_bytes_per_s)
        self.control = ControlTally()
        self.directory = Libp2pDirectory(thread, self._current, self.control)
        self._options = options
        self._peer_id = peer_id
        self._calls: dict[str, CallHandler] = {}
        self._streams: dict[str, StreamHandler] = {}
        self._known_addresses: dict[str, None] = dict.fromkeys(options.initial_peers)
        self._session: Session | None = None
        self._session_came = trio.Event()
        self._addresses: tuple[str, ...] = ()
        self.direct: DirectWay | None = None
        self.p2pd_pid: int | None = None

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""
        return self._peer_id

    def serve_calls(self, channel: str, handler: CallHandler) -> None:
        """Answer calls on this channel."""
        self._calls[channel] = handler

    def serve_streams(self, channel: str, handler: StreamHandler) -> None:
        """Answer streams on this channel."""
        self._streams[channel] = handler

    def addresses(self) -> tuple[str, ...]:
        """Our multiaddresses, each ending in /p2p/<peer id>; empty for a peer that does not listen."""
        return self._addresses

    def bulk_addresses(self) -> tuple[BulkAddress, ...]:
        """Our addresses for direct bulk streams."""
        return self.direct.own() if self.direct is not None else ()

    def traffic(self) -> TrafficCount:
        """Payload bytes so far."""
        control, bulk = self.control, self.lane.tally
        lanes = (control.bytes_up, control.bytes_down, bulk.bytes_up, bulk.bytes_down)
        return TrafficCount(*lanes, bulk.counts(), control.counts())

    async def call(self, peer: PeerId, channel: str, request: bytes, *, timeout_s: float) -> bytes:
        """One request, one reply: on a direct calls connection if there is one, else on a stream of libp2p."""
        with trio.move_on_after(timeout_s):
            _check(request)
            found = await self.direct.calls.find(peer, channel, timeout_s) if self.direct is not None else None
            if found is None:
                return await self._call_libp2p(peer, channel, request, timeout_s)
            self.control.sent(channel, len(request))
            try:
                reply = await found.call(channel, request)
            except NotSent:
                self.control.not_sent(channel, len(request))
                return await self._call_libp2p(peer, channel, request, timeout_s)
            self.control.received(channel, len(reply))
            return reply
        raise CallTimeout(f"no answer from {peer} on {channel} within {timeout_s:g} s", "an answer")

    async def _call_libp2p(self, peer: PeerId, channel: str, request: bytes, timeout_s: float) -> bytes:
        with trio.move_on_after(timeout_s):
            session = await self._current()
            self.control.sent(channel, len(request))
            reply = await self.thread.run(session.call, peer, channel, request)
            self.control.received(channel, len(reply))
            return reply
        raise CallTimeout(f"no answer from {peer} on {channel} within {timeout_s:g} s", "an answer")

    async def call_each(
        self, peers: Sequence[PeerId], channel: str, request: bytes, *, timeout_s: float, took: TookReply
    ) -> None:
        """Call several peers concurrently."""

        async def call(peer: PeerId) -> None:
            try:
                reply: bytes | PotluckError = await self.call(peer, channel, request, timeout_s=timeout_s)
            except (TransportError, RemoteProtocolError) as error:
                reply = error
            await took(peer, reply)

        _check(request)
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(call, peer)

    async def open_stream(self, peer: PeerId, channel: str, *, timeout_s: float) -> Stream:
        """A stream to the peer's handler of this channel: direct if possible, else over libp2p."""
        with trio.move_on_after(timeout_s):
            direct = await self.direct.open_stream(peer, channel, timeout_s) if self.direct is not None else None
            if direct is not None:
                return direct
            session = await self._current()
            raw = await self.thread.run(session.open_stream, peer, channel)
            return Libp2pStream(self.thread, self.lane, raw, channel)
        raise CallTimeout(f"no stream to {peer} on {channel} within {timeout_s:g} s", "an open stream")

    async def add_addresses(self, addresses: Sequence[str]) -> None:
        """Connect to the addresses that answer, and remember them for the next start of p2pd."""
        session = await self._current()
        reached = await self.thread.run(session.add_addresses, tuple(addresses))
        for address in reached:
            self._known_addresses[address] = None
        while len(self._known_addresses) > MAX_KNOWN_ADDRESSES:
            del self._known_addresses[next(iter(self._known_addresses))]

    async def publish(self, key: str, subkey: str, value: bytes, *, expires_unix_s: float) -> bool:
        """Store a directory record, and store it again after a restart of p2pd while it is live."""
        return await self.directory.publish(key, subkey, value, expires_unix_s=expires_unix_s)

    async def lookup(self, key: str) -> Sequence[DirectoryEntry]:
        """The live records under a key."""
        return await self.directory.lookup(key)

    def cap_bulk(self, upload_bytes_per_s: float | None, download_bytes_per_s: float | None) -> None:
        """Set the owner's caps of the bulk lane from now on, None for no cap. Control messages are not delayed."""
        self.lane.cap(upload_bytes_per_s, download_bytes_per_s)

    async def _current(self) -> Session:
        while self._session is None:
            await self._session_came.wait()
        return self._session

    def hooks(self) -> SessionHooks:
        """Our callbacks for the asyncio side."""

        async def answer(peer: PeerId, channel: str, request: bytes) -> tuple[Status, bytes]:
            return await self.thread.call_trio(self._answer, peer, channel, request)

        async def serve_stream(peer: PeerId, channel: str, raw: RawStream) -> bool:
            stream = Libp2pStream(self.thread, self.lane, raw, channel)
            return await self.thread.call_trio(self._serve_stream, peer, channel, stream)

        async def admits(peer: PeerId) -> bool | None:
            return await self.thread.call_trio(self._options.admits, peer)

        options = self._options
        return SessionHooks(
            admits, options.open_channels, self._streams.__contains__, answer, serve_stream, options.record_rule
        )

    def as_host(self) -> HostNetwork:
        """Our callbacks for the direct way."""
        return HostNetwork(
            self._peer_id,
            self._call_libp2p,
            self.addresses,
            self.serve_calls,
            self._answer,
            self._options.open_channels,
            self._options.admits,
            self._streams.__contains__,
            self._serve_stream,
        )

    async def _answer(self, peer: PeerId, channel: str, request: bytes) -> tuple[Status, bytes]:
        handler = self._calls.get(channel)
        if handler is None:
            return Status.UNSERVED, b""
        self.control.received(channel, len(request))
        reason = f"no answer within {MAX_HANDLER_S:.0f} s"
        try:
            with trio.move_on_after(MAX_HANDLER_S):
                reply = await handler(peer, request)
                if len(reply) <= MAX_CONTROL_BYTES:
                    self.control.sent(channel, len(reply))
                    return Status.FINE, reply
                reason = f"a reply of {len(reply)} bytes, at most {MAX_CONTROL_BYTES}"
        except PotluckError as error:
            reason = error.one_line()
        except Exception:  # the edge of a nursery: one bad request must not end the daemon
            log.exception("call_handler_failed", peer=peer_name(peer), channel=channel)
            reason = "internal error"
        log.info("call_failed", peer=peer_name(peer), channel=channel, reason=reason)
        return Status.FAILED, reason.encode()[:MAX_REASON_BYTES]

    async def _serve_stream(self, peer: PeerId, channel: str, stream: Stream) -> bool:
        try:
            await self._streams[channel](peer, stream)
        except PotluckError as error:
            log.info("stream_reset", peer=peer_name(peer), channel=channel, reason=error.one_line())
            return False
        except Exception:  # the edge of a nursery: one bad stream must not end the daemon
            log.exception("stream_handler_failed", peer=peer_name(peer), channel=channel)
            return False
        return True

    def attach(self, session: Session, addresses: tuple[str, ...], p2pd_pid: int) -> None:
        """Use this session from now on."""
        self._session, self._addresses, self.p2pd_pid = session, addresses, p2pd_pid
        self._session_came.set()

    def detach(self) -> None:
        """Use no session, because p2pd is gone; calls wait for the next one."""
        self._session = self.p2pd_pid = None
        self._session_came = trio.Event()

    @property
    def known_addresses(self) -> tuple[str, ...]:
        """Addresses to try at a start of p2pd."""
        return tuple(self._known_addresses)

    async def ping(self, peer: PeerId) -> None:
        """One round trip on the control lane. Raises TransportError; CallTimeout if it is lost."""
        found = self.direct.calls.live(peer) if self.direct is not None else None
        if found is None:
            await self.thread.run((await self._current()).ping, peer, timeout_s=PING_TIMEOUT_S)
            return
        with trio.move_on_after(PING_TIMEOUT_S), suppress(NotSent):
            await found.ping()
            return
        raise CallTimeout(f"no ping from {peer} within {PING_TIMEOUT_S:g} s", "an answer")


def _check(request: bytes) -> None:
    if len(request) > MAX_CONTROL_BYTES:
        raise LocalProtocolError(f"a request of {len(request)} bytes", f"at most {MAX_CONTROL_BYTES}")


class _Supervisor:
    """Starts p2pd and its session, and restarts both when p2pd dies."""

    def __init__(self, network: Libp2pNetwork, options: NetworkOptions, folder: Path) -> None:
        self._network = network
        self._p2pd = options.p2pd
        self._folder = folder
        self._process: P2pdProcess | None = None
        self._session: Session | None = None

    async def start(self) -> None:
        """Start p2pd and attach. Raises MachineError, also if p2pd's peer id is not ours."""
        thread, hooks, relays = self._network.thread, self._network.hooks(), self._p2pd.relays
        self._process = process = await thread.run(start_p2pd, self._p2pd, self._folder)
        self._session = session = await thread.run(open_session, process, hooks, self._folder, relays)
        if session.peer_id != self._network.peer_id:
            raise MachineError(
                f"p2pd's identity is {session.peer_id}", f"{self._network.peer_id}", "check the identity file"
            )
        addresses = await thread.run(self._start_session, session)
        self._p2pd = replace(self._p2pd, listen=with_real_ports(self._p2pd.listen, addresses))
        self._network.attach(session, addresses, process.pid)

    async def _start_session(self, session: Session) -> tuple[str, ...]:
        await session.start(self._network.known_addresses, is_client=not self._p2pd.accepts_inbound)
        return await session.addresses() if self._p2pd.accepts_inbound else ()

    async def stop(self) -> None:
        """Detach and end p2pd, in bounded time."""
        self._network.detach()
        session, process = self._session, self._process
        self._session = self._process = None
        # a cancelled restart leaves neither behind; this ends within twice STOP_TIMEOUT_S, plus delays of the thread
        with trio.CancelScope(shield=True):
            try:
                if session is not None:
                    await self._network.thread.run(session.close, timeout_s=STOP_TIMEOUT_S)
            finally:
                if process is not None:
                    await self._network.thread.run(process.stop, timeout_s=STOP_TIMEOUT_S)

    async def keep(self, unix_s: Callable[[], float]) -> None:
        """Restart p2pd with the same identity and port whenever it dies, until cancelled."""
        while True:
            process = self._process
            if process is not None:
                status = await self._network.thread.run(process.wait_exit)
                log.warning("p2pd_died", status=status, last_line=process.last_line)
            await self._restart()
            await self._network.directory.publish_again(unix_s())

    def take_place_again(self) -> None:
        """Let p2pd start again, since it asks a relay that was away for a place only once an hour."""
        if self._process is not None:
            self._process.terminate()

    async def _restart(self) -> None:
        attempt = 0
        while True:
            try:
                await self.stop()
                await trio.sleep(RESTART_BACKOFF_S[min(attempt, len(RESTART_BACKOFF_S) - 1)])
                await self.start()
            except (MachineError, TransportError) as error:
                log.warning("p2pd_restart_failed", attempt=attempt, reason=error.one_line())
                attempt += 1
            else:
                log.info("p2pd_restarted", attempt=attempt)
                return


@asynccontextmanager
async def open_libp2p_network(
    thread: AsyncioThread, options: NetworkOptions, peer_id: PeerId, *, unix_s: Callable[[], float]
) -> AsyncIterator[Libp2pNetwork]:
    """Start p2pd with the identity of `peer_id`, join through the initial peers that answer, and keep it running.

    Serve channels right after it opens; callers of an unserved channel get PeerUnreachable.

    Raises:
        MachineError: p2pd does not start (port in use, bad identity, no folder for its sockets), or the bulk port is in use.
    """
    allow_open_files()
    await trio.to_thread.run_sync(import_hivemind)
    roots = socket_roots(options.p2pd.identity_file.parent)
    folder = await trio.to_thread.run_sync(make_socket_folder, roots)
    try:
        async with open_plain_nursery() as nursery:
            network = Libp2pNetwork(thread, options, peer_id)
            supervisor = _Supervisor(network, options, folder)
            try:
                await supervisor.start()
                nursery.start_soon(supervisor.keep, unix_s)
                nursery.start_soon(keep_place, options.p2pd.places, network.ping, supervisor.take_place_again)
                nursery.start_soon(network.lane.keep_pinging, network.ping)
                async with _maybe_direct(network, options.direct):
                    yield network
            finally:
                nursery.cancel_scope.cancel()
                await _stop_quietly(supervisor)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _maybe_direct(network: Libp2pNetwork, options: DirectOptions | None) -> AsyncIterator[None]:
    if options is None:
        yield
        return
    async with open_direct(options, network.as_host(), network.lane) as network.direct:
        try:
            yield
        finally:
            network.direct = None


async def _stop_quietly(supervisor: _Supervisor) -> None:
    try:
        with trio.CancelScope(shield=True):
            await supervisor.stop()
    except (CallTimeout, TransportError) as error:
        log.warning("p2pd_stop_failed", reason=error.one_line())
