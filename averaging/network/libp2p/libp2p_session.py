"""A session with one running p2pd: hivemind's P2P and DHT node, our stream handlers, and the raw streams they carry.

Everything here runs on the asyncio thread. When p2pd dies, the session is discarded and a new one is made for the next p2pd.
hivemind is imported inside functions (hivemind_parts.py): it costs seconds, and changes torch's sharing strategy and the start
method.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from averaging.network.libp2p.libp2p_listener import bring_to, make_listener
from averaging.network.libp2p.libp2p_stream import BROKEN, CLOSE_GRACE_S, Daemon, RawStream
from averaging.network.libp2p.p2pd import P2pdProcess
from averaging.network.seams.call_limits import (
    MAX_CALLS,
    MAX_CALLS_PER_PEER,
    MAX_PER_STRANGER,
    MAX_STRANGERS,
    NOT_ADMITTED,
    STRANGER_WITHIN_S,
    Admits,
    CallAdmission,
    CallLimiter,
    CallSlot,
    RecentVerdicts,
)
from averaging.network.seams.directory import Record, RecordRule
from averaging.network.seams.frames import (
    MAX_CHANNEL_BYTES,
    MAX_REASON_BYTES,
    EndOfStream,
    Status,
    frame_of,
    refusal,
    write_bytes,
    write_frame,
)
from averaging.network.seams.interfaces import MAX_CONTROL_BYTES, DirectoryEntry
from protocol.errors import (
    MachineError,
    PotluckError,
    TemporaryError,
)
from protocol.ids import PeerId

log = structlog.get_logger()

CALL_PROTOCOL: Final = "potluck-1-call"
STREAM_PROTOCOL: Final = "potluck-1-stream"
PING_PROTOCOL: Final = "potluck-1-ping"
CONNECT_TIMEOUT_S: Final = 5.0
START_TIMEOUT_S: Final = 30.0
REPLY_TIMEOUT_S: Final = 30.0
"""Time limit for a caller to take its reply."""
DIRECTORY_TIMEOUT_S: Final = 8.0
MAX_STREAMS_PER_PEER: Final = 16
MAX_STREAMS: Final = 256
MAX_PINGS: Final = 64
TAKEN_WITHIN_S: Final = 10.0
"""Time limit for a caller to end a call whose reply p2pd has; its place is taken until then."""
TURNED_AWAY_S: Final = 3.0
MAX_TURNED_AWAY_PER_PEER: Final = 64
MAX_TURNED_AWAY: Final = 256
"""Members that get a refusal at the same time; strangers have as many places for this as for calls. Further refusals do not wait
for the caller, and may arrive as a reset.
"""


@dataclass(frozen=True, slots=True)
class SessionHooks:
    """Callbacks of a session into trio.

    Attributes:
        admits: whether to serve a peer on all channels; None if unknown. Called before a request is read; may take seconds.
        open_channels: call channels that serve everybody.
        serves_streams: whether a stream channel has a handler. Must not block.
        answer: (peer, channel, request) -> status and reply, or reason.
        serve_stream: runs the handler of a stream; True if it ended well, False if the stream must be reset.
        record_rule: the rule for directory records.
    """

    admits: Admits
    open_channels: frozenset[str]
    serves_streams: Callable[[str], bool]
    answer: Callable[[PeerId, str, bytes], Awaitable[tuple[Status, bytes]]]
    serve_stream: Callable[[PeerId, str, RawStream], Awaitable[bool]]
    record_rule: RecordRule


class _RuleValidator:
    """A record validator of hivemind that applies our rule. Keys are not checked, subkeys and values are."""

    priority = 0

    def __init__(self, rule: RecordRule) -> None:
        self._rule = rule

    def validate(self, record: Any) -> bool:
        """Whether a record may be stored or believed; called for every record from a stranger."""
        from hivemind.utils import MSGPackSerializer

        if len(record.subkey) > 256 or len(record.value) > 16384:
            return False
        try:
            subkey, value = MSGPackSerializer.loads(record.subkey), MSGPackSerializer.loads(record.value)
        except Exception as error:  # noqa: BLE001 - a stranger's bytes: msgpack raises half a dozen unrelated types
            log.debug("record_unreadable", error=type(error).__name__)
            return False
        if not isinstance(subkey, str) or not isinstance(value, bytes):
            return False
        reason = self._rule(Record(subkey, value, record.expiration_time, record.key), time.time())
        if reason:
            log.debug("record_refused", subkey=subkey, reason=reason)
        return not reason

    def sign_value(self, record: Any) -> bytes:
        """The value itself, which is signed already."""
        return bytes(record.value)

    def strip_value(self, record: Any) -> bytes:
        """The value with its signature, which readers check too."""
        return bytes(record.value)


class Session:
    """Made by `open_session`."""

    def __init__(
        self, process: P2pdProcess, p2p: Any, hooks: SessionHooks, folder: Path, relays: Sequence[str] = ()
    ) -> None:
        self.daemon = Daemon(process, relays)
        self._p2p = p2p
        self._socket = folder / f"streams-{process.pid}"
        self._listener: asyncio.Server | None = None
        self._node: Any = None
        self._hooks = hooks
        verdicts = RecentVerdicts(hooks.admits)
        self._calls = CallAdmission(verdicts, CallLimiter(MAX_CALLS_PER_PEER, MAX_CALLS), hooks.open_channels)
        self._streams = CallAdmission(verdicts, CallLimiter(MAX_STREAMS_PER_PEER, MAX_STREAMS), frozenset())
        self._pings = CallLimiter(MAX_PER_STRANGER, MAX_PINGS)
        self._turned_away = CallLimiter(MAX_TURNED_AWAY_PER_PEER, MAX_TURNED_AWAY)
        self._strangers_turned_away = CallLimiter(MAX_PER_STRANGER, MAX_STRANGERS)
        self._verdict = verdicts.known

    @property
    def peer_id(self) -> PeerId:
        """Our peer id, as p2pd reports it."""
        return PeerId(self._p2p.peer_id.to_base58())

    async def start(self, addresses: Sequence[str], *, is_client: bool) -> None:
        """Serve the handlers, connect to the addresses that answer, and join the directory through them.

        Raises:
            MachineError: p2pd died or stopped answering.
        """
        from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._start(addresses, is_client)
        except (TimeoutError, P2PDaemonError, *BROKEN) as error:
            raise MachineError(f"p2pd failed while joining: {error!r}"[:300], "a running libp2p daemon") from error

    async def _start(self, addresses: Sequence[str], is_client: bool) -> None:
        from hivemind.dht.node import DHTNode

        serving = {
            CALL_PROTOCOL: self._serve_call,
            STREAM_PROTOCOL: self._serve_stream,
            PING_PROTOCOL: self._serve_ping,
        }
        self._listener = await make_listener(self._socket, serving)
        await self._listener.start_serving()
        await bring_to(self._socket, self.daemon.control_socket, tuple(serving))
        reached = await self._connect(addresses)
        if tried := sorted({address.rpartition("/p2p/")[0] for address in addresses} if not reached else ()):
            reason = f"tried {len(tried)}, first {tried[0]}; this peer goes on alone until it finds one"
            log.warning("no_known_peer_answers", reason=reason)
        self._node = await DHTNode.create(
            p2p=self._p2p,
            initial_peers=list(reached) or None,
            client_mode=is_client,
            record_validator=_RuleValidator(self._hooks.record_rule),
            ensure_bootstrap_success=False,
            strict=False,
            cache_locally=False,
            cache_nearest=0,
        )

    async def close(self) -> None:
        """Detach. Nothing here waits long, because a dead p2pd answers nothing."""
        if self._listener is not None:
            self._listener.close()
            with suppress(OSError):
                self._socket.unlink(missing_ok=True)
        await self.daemon.close()
        if self._node is not None:
            self._node.is_alive = False
            if self.daemon.is_running:
                with suppress(TimeoutError, *BROKEN):
                    await asyncio.wait_for(self._node.shutdown(), CLOSE_GRACE_S)
        await self._p2p.shutdown()

    async def addresses(self) -> tuple[str, ...]:
        """Our multiaddresses, each ending in /p2p/<peer id>.

        Raises:
            TemporaryError: this machine has no network interface with an address.
        """
        try:
            return tuple(str(address) for address in await self._p2p.get_visible_maddrs(latest=True))
        except ValueError as error:  # hivemind's word for none
            raise TemporaryError(
                "no network interface of this machine is up", "one with an address", "connect it, then try again"
            ) from error

    async def _connect(self, addresses: Sequence[str]) -> tuple[str, ...]:
        from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerID
        from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
        from hivemind.utils.multiaddr import Multiaddr

        async def connect(address: str) -> str | None:
            transport, _, peer = address.rpartition("/p2p/")
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await self._p2p._client.connect(PeerID.from_base58(peer), [Multiaddr(transport)])
            except (TimeoutError, P2PDaemonError, ValueError, *BROKEN) as error:
                log.debug("address_unreachable", address=address, error=str(error)[:200])
                return None
            return address

        own = self.peer_id
        others = [address for address in addresses if "/p2p/" in address and not address.endswith(own)]
        return tuple(address for address in await asyncio.gather(*map(connect, others)) if address)

    async def add_addresses(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Connect to the addresses that answer, and add them to the directory node; returns them."""
        from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerID

        reached = await self._connect(addresses)
        peers = {address.rpartition("/p2p/")[2] for address in reached}
        await asyncio.gather(*(self._node.protocol.call_ping(PeerID.from_base58(peer)) for peer in sorted(peers)))
        return reached

    async def publish(self, key: str, subkey: str, value: bytes, expires_unix_s: float) -> bool:
        """Store a record on the nearest nodes; False if none stored it or it took too long."""
        try:
            async with asyncio.timeout(DIRECTORY_TIMEOUT_S):
                return bool(await self._node.store(key, value, expires_unix_s, subkey=subkey))
        except (TimeoutError, *BROKEN) as error:
            log.warning("publish_failed", key=key, error=type(error).__name__)
            return False

    async def lookup(self, key: str) -> tuple[DirectoryEntry, ...]:
        """The live records, checked, by subkey."""
        try:
            async with asyncio.timeout(DIRECTORY_TIMEOUT_S):
                found = await self._node.get(key, latest=True)
        except (TimeoutError, *BROKEN) as error:
            log.warning("lookup_failed", key=key, error=type(error).__name__)
            return ()
        if found is None or not isinstance(found.value, dict):
            return ()
        now_unix_s = time.time()
        entries = [DirectoryEntry(subkey, item.value, item.expiration_time) for subkey, item in found.value.items()]
        return tuple(sorted((e for e in entries if e.expires_unix_s > now_unix_s), key=lambda entry: entry.subkey))

    async def call(self, peer: PeerId, channel: str, request: bytes) -> bytes:
        """One request, one reply. Raises TransportError, RemoteProtocolError."""
        stream = await self.daemon.open_stream(peer, CALL_PROTOCOL)
        try:
            await write_frame(stream.writer, channel.encode())
            await write_frame(stream.writer, request)
            status = await stream.frames.read_status()
            reply = await stream.frames.read(MAX_CONTROL_BYTES)
        except (EndOfStream, *BROKEN) as error:
            raise await stream.broken() from error
        finally:
            stream.writer.close()
        if status is not Status.FINE:
            raise refusal(status, peer, channel, reply[:MAX_REASON_BYTES].decode(errors="replace"))
        return reply

    async def open_stream(self, peer: PeerId, channel: str) -> RawStream:
        """A bulk stream that the other side has accepted. Raises TransportError, RemoteProtocolError."""
        stream = await self.daemon.open_stream(peer, STREAM_PROTOCOL)
        try:
            await write_frame(stream.writer, channel.encode())
            status = await stream.frames.read_status()
        except BROKEN as error:
            stream.writer.close()
            raise await stream.broken() from error
        except BaseException:
            stream.writer.close()
            raise
        if status is not Status.FINE:
            stream.writer.close()
            raise refusal(status, peer, channel)
        return stream

    async def ping(self, peer: PeerId) -> None:
        """One round trip on the control lane. Raises TransportError."""
        stream = await self.daemon.open_stream(peer, PING_PROTOCOL)
        try:
            write_bytes(stream.writer, b"\x00")
            await stream.frames.read_status()
        except BROKEN as error:
            raise await stream.broken() from error
        finally:
            stream.writer.close()

    async def _serve_ping(self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = RawStream(peer, reader, writer, self.daemon)
        if not self._pings.enter(peer):
            writer.close()
            return
        try:
            async with asyncio.timeout(STRANGER_WITHIN_S):
                writer.write(await reader.readexactly(1))
                await stream.drop_rest(STRANGER_WITHIN_S)
        except (TimeoutError, *BROKEN):
            log.debug("ping_broken")
        finally:
            self._pings.leave(peer)
            writer.close()

    async def _serve_call(self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = RawStream(peer, reader, writer, self.daemon)
        visit = self._calls.enter(stream.remote)
        if visit is None:
            self._turn_away(stream, bytes([Status.BUSY]) + frame_of(b""))
            return
        try:
            await self._serve_visit(visit, stream)
        except (EndOfStream, TimeoutError, UnicodeDecodeError, PotluckError, *BROKEN) as error:
            log.debug("call_dropped", peer=visit.peer, error=repr(error)[:200])
            writer.close()
        except asyncio.CancelledError:
            writer.close()
            raise
        finally:
            visit.leave()

    async def _serve_visit(self, visit: CallSlot, stream: RawStream) -> None:
        """Serve one call. If this raises, the caller must close the socket."""
        async with asyncio.timeout(visit.within_s):
            channel = (await stream.frames.read(MAX_CHANNEL_BYTES)).decode("ascii")
        status = await self._calls.pass_to(visit, channel)
        if status is not Status.FINE:
            self._turn_away(stream, bytes([status]) + frame_of(NOT_ADMITTED if status is Status.FAILED else b""))
            return
        async with asyncio.timeout(visit.within_s):
            request = await stream.frames.read(visit.max_request_bytes)
        status, reply = await self._hooks.answer(visit.peer, channel, request)
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            write_bytes(stream.writer, bytes([status]))
            await write_frame(stream.writer, reply)
        await stream.drop_rest(min(visit.within_s, TAKEN_WITHIN_S))
        stream.writer.close()

    async def _serve_stream(self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = RawStream(peer, reader, writer, self.daemon)
        visit = self._streams.enter(stream.remote)
        if visit is None:
            self._turn_away(stream, bytes([Status.BUSY]))
            return
        try:
            async with asyncio.timeout(visit.within_s):
                channel = (await stream.frames.read(MAX_CHANNEL_BYTES)).decode("ascii")
            status = await self._streams.pass_to(visit, channel)
            if status is Status.FINE and not self._hooks.serves_streams(channel):
                status = Status.UNSERVED
            if status is not Status.FINE:
                self._turn_away(stream, bytes([status]))
                return
            write_bytes(writer, bytes([status]))
            if await self._hooks.serve_stream(visit.peer, channel, stream):
                await stream.close()
            else:
                stream.reset()
        except (EndOfStream, TimeoutError, UnicodeDecodeError, PotluckError, *BROKEN) as error:
            log.debug("stream_dropped", peer=visit.peer, error=repr(error)[:200])
            stream.reset()
        except asyncio.CancelledError:
            stream.reset()
            raise
        finally:
            visit.leave()

    def _turn_away(self, stream: RawStream, answer: bytes) -> None:
        """Answer without reading the request."""
        gate = self._turned_away if self._verdict(stream.remote) is True else self._strangers_turned_away
        if not gate.enter(stream.remote):
            with suppress(*BROKEN):
                write_bytes(stream.writer, answer)
            stream.writer.close()
            return

        async def wait() -> None:
            try:
                write_bytes(stream.writer, answer)
                await stream.drop_rest(TURNED_AWAY_S)
            except BROKEN as error:
                log.debug("turned_away_broken", peer=stream.remote, error=repr(error)[:200])
            finally:
                gate.leave(stream.remote)
                stream.writer.close()

        self.daemon.keep_until_done(wait())


async def open_session(process: P2pdProcess, hooks: SessionHooks, folder: Path, relays: Sequence[str] = ()) -> Session:
    """Attach to a running p2pd; our own listening socket is in `folder`, too. `relays` are asked for peers that cannot be dialled.

    Raises:
        MachineError: p2pd does not answer.
    """
    from hivemind.p2p import P2P
    from hivemind.utils.multiaddr import Multiaddr

    attached: Any = type("P2PInFolder", (P2P,), {"_UNIX_SOCKET_PREFIX": f"/unix{folder}/"})
    try:
        p2p = await asyncio.wait_for(attached.replicate(Multiaddr(f"/unix{process.control_socket}")), CONNECT_TIMEOUT_S)
    except (TimeoutError, *BROKEN) as error:
        raise MachineError(f"p2pd does not answer: {error!r}"[:300], "a running libp2p daemon") from error
    return Session(process, p2p, hooks, folder, relays)
