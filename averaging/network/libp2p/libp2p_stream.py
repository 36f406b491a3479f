"""A raw libp2p stream over p2pd's control socket, and the p2pd that carries it. Runs on the asyncio thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

from averaging.network.libp2p.circuits import (
    CIRCUIT,
    CIRCUIT_WITHIN_S,
    circuits_through,
    is_relay_away,
    without_circuits,
)
from averaging.network.libp2p.p2pd import P2pdProcess
from averaging.network.seams.frames import EndOfStream, FrameReader, write_end, write_frame
from averaging.network.seams.interfaces import MAX_FRAME_BYTES
from protocol.errors import CallTimeout, ConnectionReset, PeerUnreachable, RemoteProtocolError, TransportError
from protocol.ids import PeerId

log = structlog.get_logger()

LINGER_S: Final = 120.0
LINGER_BYTES: Final = 8 * MAX_FRAME_BYTES
"""Time and bytes that a stream which we ended waits for the other side's end; its bytes are dropped."""
CLOSE_GRACE_S: Final = 1.0
EXITED_WITHIN_S: Final = 0.02
"""A killed process closes its sockets a moment before the kernel counts it as exited."""

DROP_BYTES: Final = 1 << 16
REFUSED: Final = "refused"
RESET: Final = "reset"
BACKOFF: Final = "dial backoff"
NOT_NOW: Final = (
    *("timeout", "deadline", "context canceled", "connection failed"),
    *("network is unreachable", "no route to host", "too many open files", "resource limit exceeded"),
)
"""Words in go-libp2p's errors: nobody listens there; the connection broke before the stream was open; a dial is too soon after a
failed one; and errors that say nothing about the peer, such as no answer in time or a problem of our own machine.
"""

MAX_REFUSED: Final = 4096
BROKEN: Final = (asyncio.IncompleteReadError, ConnectionError, OSError, EOFError)
"""Errors that asyncio raises if a socket to p2pd breaks."""


class RawStream:
    """One end of a libp2p stream: frames over p2pd's socket."""

    def __init__(self, remote: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, own: Daemon) -> None:
        self.remote = remote
        self.frames = FrameReader(reader)
        self._reader = reader
        self.writer = writer
        self._daemon = own
        self._is_closed = False

    async def broken(self) -> TransportError:
        """The error for a broken stream: the peer is gone, or only the connection, or our own p2pd."""
        await asyncio.sleep(EXITED_WITHIN_S)
        if not self._daemon.is_running:
            return CallTimeout(f"our own libp2p daemon died during a stream with {self.remote}", "a running one")
        return ConnectionReset(f"the stream with {self.remote} was reset", "a live stream")

    async def send(self, data: bytes) -> None:
        """Send one frame. Raises TransportError: the stream is broken."""
        if self._is_closed or self.writer.is_closing():
            raise await self.broken()
        try:
            await write_frame(self.writer, data)
        except BROKEN as error:
            raise await self.broken() from error

    async def receive(self) -> bytes | None:
        """The next frame; None after the clean end. Raises TransportError, RemoteProtocolError."""
        try:
            return await self.frames.read(MAX_FRAME_BYTES)
        except EndOfStream:
            return None
        except RemoteProtocolError:
            self.reset()
            raise
        except BROKEN as error:
            raise await self.broken() from error

    async def close(self) -> None:
        """End cleanly: sent bytes still arrive.

        p2pd closes both directions as soon as one ends, and bytes in the other direction are lost. So a task of the session keeps
        the socket open until the other side has ended, too.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            write_end(self.writer)
        except ConnectionError:
            return  # broken already, so there is nothing to wait for
        self._daemon.keep_until_done(self._linger())

    async def _linger(self) -> None:
        try:
            async with asyncio.timeout(LINGER_S):
                await self.writer.drain()
                if not self.frames.is_ended and not self.frames.is_reading:
                    await self.frames.skip_to_end(LINGER_BYTES)
        except (TimeoutError, RemoteProtocolError, *BROKEN) as error:
            log.debug("stream_closed_unclean", peer=self.remote, error=repr(error)[:200])
        finally:
            self.writer.close()

    async def drop_rest(self, within_s: float) -> None:
        """Read and drop bytes until the other side closes, at most `within_s`. Raises asyncio's errors if the stream breaks.

        The side that sends last must wait like this before it closes its socket. p2pd ends its libp2p stream for reading and for
        writing one after the other (go-yamux: `Stream.Close`), and its own reader, woken by the first, may reset the stream before
        the second (go-libp2p-daemon: `doStreamPipe`). A reset overtakes earlier bytes, so the last answer would look like a dead
        process.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while await self._reader.read(DROP_BYTES):
                    pass

    def reset(self) -> None:
        """Break the stream: the other side sees no final marker."""
        self._is_closed = True
        self.writer.transport.abort()


class Daemon:
    """The p2pd below the streams: whether it runs, and streams over its control socket. Peers that nobody can connect to are reached
    through `relays`.
    """

    def __init__(self, process: P2pdProcess, relays: Sequence[str] = ()) -> None:
        self._process = process
        self._relays = tuple(relays)
        self._lingering: set[asyncio.Task[None]] = set()
        self._verdicts = DialVerdicts()

    def keep_until_done(self, ending: Coroutine[Any, Any, None]) -> None:
        """Let a stream that we ended wait for the other side."""
        task = asyncio.create_task(ending, name="lingering stream")
        self._lingering.add(task)
        task.add_done_callback(self._lingering.discard)

    async def close(self) -> None:
        """Give lingering streams a moment, then drop them."""
        if self._lingering:
            _, late = await asyncio.wait(set(self._lingering), timeout=CLOSE_GRACE_S if self.is_running else 0)
            for task in late:
                task.cancel()

    @property
    def is_running(self) -> bool:
        """Whether p2pd runs, as the kernel reports now."""
        return self._process.is_running

    @property
    def control_socket(self) -> Path:
        """The socket at which p2pd takes requests."""
        return self._process.control_socket

    async def open_stream(self, peer: PeerId, protocol: str) -> RawStream:
        """A libp2p stream to a peer, through a relay if there is no other way; nothing stays open if this fails or is cancelled.

        Raises:
            PeerUnreachable: refused, unknown, or it does not speak the protocol. ConnectionReset: the connection broke meanwhile.
            CallTimeout: the peer could not be dialled in time, only an absent relay could have reached it, or our own p2pd is not
                running.
        """
        try:
            return await self._open_stream(peer, protocol)
        except (PeerUnreachable, CallTimeout) as error:
            if not self._relays or not self.is_running:
                raise
            if not await self._connect_by_relay(peer, error):
                raise
        return await self._open_stream(peer, protocol)

    async def _connect_by_relay(self, peer: PeerId, error: TransportError) -> bool:
        """Whether a relay has connected us to the peer, after `error`. Raises CallTimeout: no relay knew whether it is there."""
        from hivemind.proto import p2pd_pb2

        circuits = circuits_through(self._relays, peer)
        if not circuits:
            return False
        connect = p2pd_pb2.ConnectRequest(peer=_peer_bytes(peer), addrs=circuits)
        try:
            async with asyncio.timeout(CIRCUIT_WITHIN_S):
                reader, writer = await asyncio.open_unix_connection(self._process.control_socket)
                try:
                    response = await _ask(
                        reader, writer, p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=connect)
                    )
                finally:
                    writer.close()
        except (TimeoutError, *BROKEN):
            raise CallTimeout(f"no relay answered in time for {peer}", "a connection") from error
        if response.type != p2pd_pb2.Response.ERROR:
            return True
        reason = response.error.msg
        log.debug("no_circuit", peer=peer, reason=reason[:300])
        if self._verdicts.may_be_there(peer, reason):
            raise CallTimeout(f"no relay could be asked for {peer}: {reason[:200]}", "a connection") from error
        return False

    async def _open_stream(self, peer: PeerId, protocol: str) -> RawStream:
        """As `open_stream`, over a connection that p2pd has or makes by itself."""
        from hivemind.proto import p2pd_pb2

        peer_bytes = _peer_bytes(peer)
        try:
            reader, writer = await asyncio.open_unix_connection(self._process.control_socket)
        except OSError as error:
            raise CallTimeout("our own libp2p daemon is not there", "a running one", "it is being restarted") from error
        stream = RawStream(peer, reader, writer, self)
        try:
            opening = p2pd_pb2.StreamOpenRequest(peer=peer_bytes, proto=[protocol])
            request = p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=opening)
            response = await _ask(reader, writer, request)
        except BROKEN as error:
            writer.close()
            found = "our own libp2p daemon ended a request for a stream"
            raise CallTimeout(found, "its answer", "it is asked again, or being restarted") from error
        except BaseException:
            writer.close()
            raise
        if response.type == p2pd_pb2.Response.ERROR:
            writer.close()
            raise self._verdicts.failed(peer, response.error.msg)
        self._verdicts.opened(peer)
        return stream


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Any) -> Any:
    """One request to p2pd, and its response. Raises asyncio's errors."""
    from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
    from hivemind.proto import p2pd_pb2

    await write_pbmsg(writer, request)
    response = p2pd_pb2.Response()
    await read_pbmsg_safe(reader, response)
    return response


def _peer_bytes(peer: PeerId) -> bytes:
    """A peer id in p2pd's encoding. Malformed text, which may come from a stranger, counts as an unreachable peer."""
    from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerID

    try:
        return bytes(PeerID.from_base58(peer).to_bytes())
    except ValueError:
        raise PeerUnreachable(f"{str(peer)[:80]!r} is no peer id", "a libp2p peer id in base58") from None


class DialVerdicts:
    """Translates p2pd's reason for not opening a stream into an error.

    A refusal means that nobody is there, and so does an unknown reason, such as a peer without an address. After a failed dial p2pd
    does not dial again for a growing pause; the reason of the failed dial counts until then.
    """

    def __init__(self) -> None:
        self._refused: dict[PeerId, None] = {}
        self._without_place: dict[PeerId, None] = {}

    def opened(self, peer: PeerId) -> None:
        """A stream to the peer was opened, so forget its refusal."""
        self._refused.pop(peer, None)
        self._without_place.pop(peer, None)

    def may_be_there(self, peer: PeerId, reason: str) -> bool:
        """Whether the peer may be there although no circuit to it was made: no relay could be asked, and no dial was refused."""
        if is_relay_away(reason):
            if BACKOFF not in reason:
                self._without_place.pop(peer, None)
            return peer not in self._without_place and peer not in self._refused
        if CIRCUIT in reason:
            _remember(self._without_place, peer)
        return False

    def failed(self, peer: PeerId, reason: str) -> TransportError:
        """The error to raise for p2pd's reason."""
        full, reason = reason, without_circuits(reason)
        if REFUSED in reason:
            _remember(self._refused, peer)
        elif BACKOFF not in reason:
            self._refused.pop(peer, None)
        is_unknown = any(word in reason for word in (BACKOFF, *NOT_NOW)) and peer not in self._refused
        if self.may_be_there(peer, full) or is_unknown:
            return CallTimeout(f"{peer} could not be dialled in time: {full[:200]}", "a connection")
        if peer not in self._refused and RESET in reason:
            return ConnectionReset(f"a connection to {peer} broke: {reason[:200]}", "an open stream")
        return PeerUnreachable(f"{peer} could not be reached: {full[:200]}", "a connection")


def _remember(peers: dict[PeerId, None], peer: PeerId) -> None:
    peers[peer] = None
    if len(peers) > MAX_REFUSED:
        del peers[next(iter(peers))]
