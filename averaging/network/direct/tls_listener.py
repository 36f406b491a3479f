"""The listening side of direct streams and calls: a peer shows its credential before we read a byte of it.

A stranger costs a socket and one place among the handshakes for a few seconds, and learns nothing. A peer with a credential takes
one of its few places, passes the same admission as on libp2p, and then names the channel that it wants.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from averaging.network.direct.connection_pool import Resting
from averaging.network.direct.direct_calls import CALLS_CHANNEL, DirectCalls, RecentVerdicts
from averaging.network.direct.substream_rule import MOST_SUBSTREAMS
from averaging.network.direct.substreams import SUBSTREAM_CHANNEL, SubstreamDesk, receive_token
from averaging.network.direct.tls_identity import CheckCredential
from averaging.network.direct.tls_socket import TlsSocket, wrap
from averaging.network.direct.tls_stream import Ending, Ends, KeepUntilDone, TlsStream, receive_opening, send_status
from averaging.network.pacing.bulk_lane import BulkLane
from averaging.network.seams.call_limits import Admits, CallLimiter
from averaging.network.seams.frames import Status
from averaging.network.seams.host_names import bracketed
from averaging.network.seams.interfaces import Stream
from averaging.network.seams.lag_patience import patient_for
from averaging.network.seams.listening import bind_listeners, listen_addresses
from protocol.errors import MachineError, PotluckError, RefusedError
from protocol.ids import PeerId

log = structlog.get_logger()

MAX_HANDSHAKES: Final = 128
MAX_HANDSHAKES_PER_ADDRESS: Final = 64
"""Peers behind one router share an address, and so do all peers of a test."""

HANDSHAKE_WITHIN_S: Final = 5.0
HANDSHAKE_AT_MOST_S: Final = 15.0
"""Time limits of a handshake: the first excludes our own delays, the second does not, so that a silent peer cannot hold its place
long.
"""

OPENING_WITHIN_S: Final = 5.0
ADMIT_WITHIN_S: Final = 5.0
MAX_STREAMS_PER_PEER: Final = 16
MAX_STREAMS: Final = 256
MAX_SUBSTREAMS_PER_PEER: Final = 2 * MOST_SUBSTREAMS
MAX_SUBSTREAMS: Final = 128
"""Substreams have their own places, so that a peer with many of them can still open a stream."""

MAX_STREAMS_PER_CONNECTION: Final = 256
"""After this number a new handshake is due: an opening costs its sender a few bytes, and us processor time."""

TURNED_AWAY_S: Final = 1.0
ACCEPT_AGAIN_S: Final = 0.1
"""Pause after the process ran out of file descriptors."""

_OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class AcceptRules:
    """The network's part in listening.

    Attributes:
        context: returns our present TLS context; a renewed credential is shown from the next connection on.
        check: verifies a credential and returns its peer.
        admits: the admission check that libp2p uses as well.
        serves: whether a channel has a handler.
        serve: runs the handler; True if it ended well, False if the stream must be reset.
        calls: serves calls connections.
    """

    context: Callable[[], ssl.SSLContext]
    check: CheckCredential
    admits: Admits
    serves: Callable[[str], bool]
    serve: Callable[[PeerId, str, Stream], Awaitable[bool]]
    calls: DirectCalls


def bind_bulk(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on `host`, "::" for all of IPv4 and IPv6 as far as the machine has them. `port` 0 for any free port.

    Raises:
        MachineError: the port is in use, or the address is not ours.
    """
    try:
        return bind_listeners(listen_addresses(host), port)
    except OSError as error:
        raise MachineError(
            f"cannot listen on {bracketed(host)}:{port} for bulk ({error.strerror})",
            "a free port on an address of this machine",
            "give another with --bulk-port, or 0 for any",
        ) from error


class _Place:
    """A peer's place in the limiter, given back once its handler and the end of its stream are both done."""

    def __init__(self, gate: CallLimiter, peer: PeerId) -> None:
        self._gate = gate
        self._peer = peer
        self._num_holders = 1

    def hold(self) -> None:
        """Add a user of the place."""
        self._num_holders += 1

    def release(self) -> None:
        """Remove a user of the place; the last one gives it back."""
        self._num_holders -= 1
        if not self._num_holders:
            self._gate.leave(self._peer)


class TlsListener:
    """Serves the connections of a few listeners."""

    def __init__(self, rules: AcceptRules, lane: BulkLane, keep_until_done: KeepUntilDone) -> None:
        self._rules = rules
        self._lane = lane
        self._keep_until_done = keep_until_done
        self._handshakes: dict[str, int] = {}
        self._gate = CallLimiter(MAX_STREAMS_PER_PEER, MAX_STREAMS)
        self._substream_gate = CallLimiter(MAX_SUBSTREAMS_PER_PEER, MAX_SUBSTREAMS)
        self._resting = Resting()
        self._verdicts = RecentVerdicts(rules.admits)
        self._desk = SubstreamDesk()

    @property
    def num_handshakes(self) -> int:
        """Number of connections whose handshake is not done."""
        return sum(self._handshakes.values())

    async def listen(self, listener: socket.socket) -> None:
        """Accept connections until cancelled. Owns the socket."""
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    await trio.lowlevel.wait_readable(listener)
                    await self._accept(listener, nursery)
            finally:
                listener.close()

    async def _accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        try:
            connection, address = listener.accept()
        except OSError as error:  # gone again, or out of files
            if error.errno in _OUT_OF_FILES:
                log.warning("bulk_connection_not_accepted", reason=error.strerror)
                await trio.sleep(ACCEPT_AGAIN_S)
            return
        name = str(address[0])
        count = self._handshakes.get(name, 0)
        if count >= MAX_HANDSHAKES_PER_ADDRESS or self.num_handshakes >= MAX_HANDSHAKES:
            connection.close()
            return
        self._handshakes[name] = count + 1
        nursery.start_soon(self._serve, connection, name, nursery)

    def _shook_hands(self, name: str) -> None:
        self._handshakes[name] -= 1
        if not self._handshakes[name]:
            del self._handshakes[name]

    async def _serve(self, connection: socket.socket, name: str, nursery: trio.Nursery) -> None:
        """Serve one connection, from its handshake on."""
        try:
            tls = wrap(connection, self._rules.context(), is_server=True)
        except (OSError, PotluckError) as error:
            connection.close()
            self._shook_hands(name)
            log.debug("bulk_handshake_failed", address=name, error=str(error)[:200])
            return
        try:
            peer = await self._shake_hands(tls, name, nursery)
            if peer is not None:
                await self._serve_peer(tls, peer)
        except (OSError, PotluckError) as error:
            log.debug("bulk_stream_dropped", address=name, error=str(error)[:200])
            tls.close(is_reset=True)
        except Exception:  # the edge of a nursery: one bad connection must not end the daemon
            log.exception("bulk_connection_failed", address=name)
            tls.close(is_reset=True)
        except BaseException:
            tls.close(is_reset=True)
            raise

    async def _shake_hands(self, tls: TlsSocket, name: str, nursery: trio.Nursery) -> PeerId | None:
        """The peer at the other end; None if the handshake took too long."""
        try:
            with patient_for(HANDSHAKE_WITHIN_S, nursery, trio.current_time() + HANDSHAKE_AT_MOST_S) as scope:
                peer = self._rules.check(await tls.handshake())
        finally:
            self._shook_hands(name)
        if scope.cancelled_caught:
            tls.close(is_reset=True)
            return None
        return peer

    async def _serve_peer(self, tls: TlsSocket, peer: PeerId) -> None:
        """Serve one stream after the other, or the calls or substream that the connection is for."""
        channel: str | None = None
        for number in range(1, MAX_STREAMS_PER_CONNECTION + 1):
            if not await self._serve_opening(tls, peer, channel):
                return
            channel = await self._next_channel(tls, peer) if number < MAX_STREAMS_PER_CONNECTION else None
            if channel is None:
                tls.close()
                return
            if self._rules.check(tls.shown) != peer:
                raise RefusedError("another credential", f"that of {peer}")

    async def _serve_opening(self, tls: TlsSocket, peer: PeerId, channel: str | None) -> bool:
        """Read an opening unless `channel` gives it, and serve it. True if the connection can carry another stream."""
        if not self._gate.enter(peer):
            await _turn_away(tls, Status.BUSY)
            return False
        place = _Place(self._gate, peer)
        try:
            status, channel = await self._open(tls, peer, channel)
            if status is not Status.FINE:
                await _turn_away(tls, status)
                return False
            if channel not in (CALLS_CHANNEL, SUBSTREAM_CHANNEL):
                await send_status(tls, status)
                return await self._serve_stream(tls, peer, channel, place)
        finally:
            place.release()
        if channel == SUBSTREAM_CHANNEL:  # substreams and calls stay long, and have places of their own
            await self._serve_substream(tls, peer)
        else:
            await send_status(tls, status)
            await self._rules.calls.serve(tls, peer)
        return False

    async def _next_channel(self, tls: TlsSocket, peer: PeerId) -> str | None:
        """The channel of the next opening on a connection whose stream is over; None if the connection ends.

        The wait takes no place, because only the first byte tells an opening from an end.
        """
        channel: str | None = None
        if await self._resting.rest(tls, peer):
            with trio.move_on_after(OPENING_WITHIN_S), suppress(OSError):  # mostly the connection ends
                channel = await receive_opening(tls)
        return channel

    async def _serve_substream(self, tls: TlsSocket, peer: PeerId) -> None:
        if not self._substream_gate.enter(peer):
            await _turn_away(tls, Status.BUSY)
            return
        try:
            token = b""
            with trio.move_on_after(OPENING_WITHIN_S):
                await send_status(tls, Status.FINE)
                token = await receive_token(tls)
            if token:
                await self._desk.keep(peer, token, tls, partial(send_status, tls, Status.FINE))
        finally:
            self._substream_gate.leave(peer)
        tls.close(is_reset=True)

    async def _serve_stream(self, tls: TlsSocket, peer: PeerId, channel: str, place: _Place) -> bool:
        """Serve a stream. True if both sides have ended it, so that its connection may carry another."""
        left, over = trio.Event(), trio.Event()
        ends = Ends(partial(self._keep, place, over), lambda _: left.set())
        stream = TlsStream(tls, peer, channel, self._lane, ends, claim=self._desk.claim)
        if await self._rules.serve(peer, channel, stream):
            await stream.aclose()
        else:
            stream.reset()
        if not tls.is_closed:
            await over.wait()
        return left.is_set()

    def _keep(self, place: _Place, over: trio.Event, ending: Ending) -> None:
        """Keep the place of a stream that we ended until the other side has ended it, too."""

        async def end() -> None:
            try:
                await ending()
            finally:
                over.set()
                place.release()

        place.hold()
        self._keep_until_done(end)

    async def _open(self, tls: TlsSocket, peer: PeerId, channel: str | None) -> tuple[Status, str]:
        """Check admission first, and then read which channel the peer wants.

        On a kept connection the channel is known already, and a recent verdict counts.
        """
        is_let_in = False
        with trio.move_on_after(ADMIT_WITHIN_S):
            admits = self._rules.admits if channel is None else self._verdicts.admits
            is_let_in = await admits(peer) is True
        if not is_let_in:
            return Status.FAILED, ""
        with trio.move_on_after(OPENING_WITHIN_S):
            channel = await receive_opening(tls) if channel is None else channel
            if channel == CALLS_CHANNEL:
                return (Status.FINE if self._rules.calls.has_place(peer) else Status.BUSY), channel
            is_served = channel == SUBSTREAM_CHANNEL or self._rules.serves(channel)
            return (Status.FINE if is_served else Status.UNSERVED), channel
        return Status.BUSY, ""


async def _turn_away(tls: TlsSocket, status: Status) -> None:
    """Refuse, and wait a moment for the other side to close: closing with unread bytes would destroy our answer."""
    with trio.move_on_after(TURNED_AWAY_S):
        await send_status(tls, status)
        rest = memoryview(bytearray(1024))
        for _ in range(64):
            if not await tls.receive_into(rest, 0):
                break
    tls.close()
