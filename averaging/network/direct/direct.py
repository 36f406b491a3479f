"""What goes direct, over TCP and TLS 1.3 to an address that the other peer told us: bulk streams, and the calls of direct_calls.py.

Where a peer listens stands in its directory record; where it does not, or nobody answers there, it is asked on the control lane once,
and that is kept. A peer that cannot be reached there is left to libp2p, and
not tried again for a while: a second at first, four times as long each time, since packets to a closed firewall may just vanish, and
the stream that tries waits for them.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog
import trio

from averaging.network.direct.connection_pool import SpareConnections
from averaging.network.direct.dialling import FIRST_PAUSE_S, RedialPause, dial_first
from averaging.network.direct.direct_calls import CALLS_CHANNEL, CallsHost, DirectCalls
from averaging.network.direct.substream_dials import StrandDials
from averaging.network.direct.substreams import STRAND_CHANNEL
from averaging.network.direct.tls_identity import CheckCredential, TlsCredential, tls_context
from averaging.network.direct.tls_listener import DoorRules, TlsDoor, bind_bulk
from averaging.network.direct.tls_socket import TlsSocket
from averaging.network.direct.tls_stream import Ends, TlsStream, send_opening
from averaging.network.pacing.bulk_lane import BulkLane
from averaging.network.seams.asyncio_thread import open_plain_nursery
from averaging.network.seams.bulk_address import BulkAddress, decode_addresses, encode_addresses, own_addresses
from averaging.network.seams.call_limits import Admits
from averaging.network.seams.frames import Status, refusal
from averaging.network.seams.interfaces import CallHandler, Stream
from averaging.network.seams.lag_patience import patient_for
from protocol.errors import MachineError, PotluckError, RefusedError, RemoteProtocolError, TransportError
from protocol.ids import PeerId

log = structlog.get_logger()

ADDRESS_CHANNEL: Final = "bulk-address"
ASK_WITHIN_S: Final = 2.0
CONNECT_WITHIN_S: Final = 2.5
"""Half of what those who open streams allow, so that libp2p has its turn."""

CONNECTED_SHARE: Final = 0.8
"""Of what those who open streams allow, where a connection is made: who answers there is busy, and would be as late by libp2p, which
costs both ends several times as much. Of 32 peers on two cores half fell back so, and no round came to its end.
"""

FIRST_WITHIN_S: Final = 0.8
"""What a way that has never worked may cost a stream: behind a router that forwards nothing a connection is only waited for. It is
then tried beside the stream, for as long as others may take.
"""

CALLS_WITHIN_S: Final = 10.0
"""For a connection for calls, where the peer takes TCP connections: calls do not wait for it."""

KEPT_FOR_S: Final = 600.0
"""A peer's answer, also one that names no address; it may listen elsewhere later."""

PLACE_SHARE: Final = 0.4
"""Of what those who open streams allow, for a place among the dials; as much is left for the dial, and libp2p has its turn."""

MAX_DIALS: Final = 8
"""Connections made at a time: a handshake costs a millisecond of both ends and more on a busy machine, and of thirty begun together
each would take as long as all.
"""
MAX_ROUTES: Final = 4096
CLOSE_GRACE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class DirectOptions:
    """How a peer takes part in direct bulk.

    Attributes:
        credential: our own credential and key as of now; asked at each connection, cheap.
        ca_certificate_der: of the run.
        check: whether a shown credential counts, and whose it is.
        listen_host: where to listen; None for a peer that takes no connections, which still dials.
        listen_port: 0 for any.
        may_take_another: whether any free port does where `listen_port` is in use: nobody chose that one.
        first_within_s: what a way that has never worked may cost a stream.
        listed: where the directory says that a peer listens for bulk, nothing where it does not say.
        num_first_strands: connections that a stream has at once; it gets others where they pay (strand_rule.py), but with 0.
    """

    credential: Callable[[], TlsCredential]
    ca_certificate_der: bytes
    check: CheckCredential
    listen_host: str | None = None
    listen_port: int = 0
    may_take_another: bool = False
    first_within_s: float = FIRST_WITHIN_S
    listed: Callable[[PeerId], tuple[BulkAddress, ...]] = lambda _: ()
    num_first_strands: int = 1


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """What the direct way needs of the network that it belongs to.

    Attributes:
        call: `Network.call`, over libp2p: the direct way asks by it where to go.
        addresses: `Network.addresses`.
        answer, open_channels: of calls, as in `CallsHost`.
        admits, serves, serve: as in `DoorRules`.
    """

    peer_id: PeerId
    call: Callable[[PeerId, str, bytes, float], Awaitable[bytes]]
    addresses: Callable[[], tuple[str, ...]]
    serve_calls: Callable[[str, CallHandler], None]
    answer: Callable[[PeerId, str, bytes], Awaitable[tuple[Status, bytes]]]
    open_channels: frozenset[str]
    admits: Admits
    serves: Callable[[str], bool]
    serve: Callable[[PeerId, str, Stream], Awaitable[bool]]


class _Route:
    """What is known of the way to one peer."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.addresses: tuple[BulkAddress, ...] = ()
        self.known_until_s = 0.0
        self.pause = RedialPause()
        self.has_worked = False
        self.is_to_ask = False
        self.mute = set[BulkAddress]()
        """Of several addresses those where a connection was taken and nothing said until patience was over: who stands there may be
        somebody else, and is not waited for again as one who is busy.
        """

    def failed(self, now_s: float) -> bool:
        """Not again for a while, and then ask first where it listens now. True for the first of streams that failed together; the
        others change nothing.
        """
        if now_s < self.pause.not_before_s:
            return False
        self.known_until_s = 0.0
        self.is_to_ask = True
        self.pause.failed(now_s)
        return True

    def said_nothing(self, address: BulkAddress, of: Sequence[BulkAddress]) -> None:
        """One of these was silent; where all are it is the peer that is busy."""
        self.mute.add(address)
        if self.mute.issuperset(of):
            self.mute.clear()

    def worked(self, address: BulkAddress) -> None:
        """Begin with this one the next time."""
        self.has_worked = True
        self.is_to_ask = False
        self.mute.discard(address)
        self.pause.worked()
        self.addresses = (address, *(other for other in self.addresses if other != address))


class DirectWay:
    """Made by `open_direct`.

    Attributes:
        port: on which we listen, None where we do not.
        calls: that go direct.
    """

    def __init__(self, options: DirectOptions, host: HostNetwork, lane: BulkLane, nursery: trio.Nursery) -> None:
        self._options = options
        self._host = host
        self._lane = lane
        self._nursery = nursery
        self._routes: dict[PeerId, _Route] = {}
        self._contexts: dict[bool, tuple[TlsCredential, ssl.SSLContext]] = {}
        self._dials = trio.Semaphore(MAX_DIALS)
        self._num_ending = 0
        self._ended = trio.Event()
        self.port: int | None = None
        calls = CallsHost(
            host.admits, host.answer, host.open_channels, self._where_known, partial(self._dial_for, CALLS_CHANNEL)
        )
        self.calls = DirectCalls(calls, nursery)
        self._strands = StrandDials(partial(self._dial_for, STRAND_CHANNEL), nursery, options.num_first_strands)
        self.spares = SpareConnections(nursery)

    async def open_stream(self, peer: PeerId, channel: str, within_s: float) -> Stream | None:
        """A direct stream, None where there is no direct way now. `within_s`: what the caller allows.

        Raises:
            TransportError, RemoteProtocolError: the peer was reached and says no.
        """
        if peer == self._host.peer_id:
            return None
        until_s = trio.current_time() + CONNECTED_SHARE * within_s
        own = self._options.credential()
        spare = await self.spares.reopened(peer, channel, own, self._is(peer), CONNECTED_SHARE * within_s)
        if spare is not None:
            return self._stream(peer, channel, *spare, own)
        if trio.current_time() >= until_s:
            return None  # it is busy, which says nothing about the way
        route = self._route_to(peer)
        addresses = await self._where(peer, route)
        if not addresses or trio.current_time() < route.pause.not_before_s:
            return None
        try:
            with trio.fail_after(PLACE_SHARE * within_s):
                await self._dials.acquire()
        except trio.TooSlowError:
            return None  # others fill all places, which says nothing about this peer
        try:
            if trio.current_time() < route.pause.not_before_s:
                return None  # another stream has found out meanwhile
            reached, tls, status = await self._opened(peer, route, addresses, channel, until_s)
        except (OSError, trio.TooSlowError, PotluckError) as error:
            is_first = route.failed(trio.current_time())
            log.info("no_direct_way", peer=peer, reason=str(error)[:200] or "too slow", pause_s=route.pause.pause_s)
            if is_first and isinstance(error, trio.TooSlowError) and not route.has_worked:
                self._nursery.start_soon(self._try_beside, peer, route, addresses)
            return None
        finally:
            self._dials.release()
        route.worked(reached)
        self.calls.forget(peer)
        return self._stream(peer, channel, tls, status, own)

    def _stream(self, peer: PeerId, channel: str, tls: TlsSocket, status: Status, own: TlsCredential) -> TlsStream:
        """Over a connection that was opened for it, and is kept after it. Raises as `open_stream` where that was refused."""
        if status is not Status.FINE:
            tls.close()
            raise refusal(status, peer, channel)
        ends = Ends(self.keep_until_done, partial(self.spares.keep, peer, own=own))
        return TlsStream(tls, peer, channel, self._lane, ends, growth=self._strands.growth(peer))

    def _where_known(self, peer: PeerId) -> tuple[BulkAddress, ...]:
        """Where calls may try: the directory first, which hears of a new port, then what streams have found."""
        route = self._routes.get(peer)
        if peer == self._host.peer_id or (route is not None and trio.current_time() < route.pause.not_before_s):
            return ()
        return tuple(dict.fromkeys((*self._options.listed(peer), *(route.addresses if route is not None else ()))))

    async def _dial_for(self, channel: str, peer: PeerId) -> TlsSocket | None:
        """A connection for calls, or a strand. Nobody is asked where the peer listens: that is a call itself. Streams still try where
        it fails.
        """
        route = self._route_to(peer)
        addresses = self._where_known(peer)
        try:
            until_s = trio.current_time() + CALLS_WITHIN_S
            reached, tls, status = await self._opened(peer, route, addresses, channel, until_s)
        except (OSError, trio.TooSlowError, PotluckError) as error:
            log.debug("no_connection", peer=peer, channel=channel, reason=str(error)[:200] or "too slow")
            return None
        if status is not Status.FINE:
            tls.close()
            return None
        route.worked(reached)
        return tls

    async def _try_beside(self, peer: PeerId, route: _Route, addresses: tuple[BulkAddress, ...]) -> None:
        """Whether a far peer can be connected to after all: if so the next stream goes there at once."""
        with trio.move_on_after(CONNECT_WITHIN_S):
            try:
                reached, tls = await dial_first(addresses, self._context(is_server=False), self._is(peer))
            except (OSError, PotluckError) as error:
                log.debug("no_direct_way_either", peer=peer, reason=str(error)[:200])
                return
            tls.close()
            route.worked(reached)

    def _is(self, peer: PeerId) -> Callable[[bytes], None]:
        def check(certificate_der: bytes) -> None:
            found = self._options.check(certificate_der)
            if found != peer:
                raise RefusedError(f"{found} answers where {peer} should", f"the credential of {peer}")

        return check

    async def _opened(
        self, peer: PeerId, route: _Route, addresses: tuple[BulkAddress, ...], channel: str, until_s: float
    ) -> tuple[BulkAddress, TlsSocket, Status]:
        """A connection, and what the peer says to our opening. Raises OSError, trio.TooSlowError, PotluckError."""
        first_s = CONNECT_WITHIN_S if route.has_worked else self._options.first_within_s
        first_until_s, waited_for = min(until_s, trio.current_time() + first_s), set[BulkAddress]()
        with patient_for(first_s, self._nursery, until_s) as scope:

            def connected(address: BulkAddress, is_there: bool) -> None:
                if is_there and address not in route.mute:
                    waited_for.add(address)
                elif not is_there:
                    waited_for.discard(address)
                    if scope.cancel_called:
                        route.said_nothing(address, addresses)
                scope.deadline = until_s if waited_for else first_until_s

            reached, tls = await dial_first(addresses, self._context(is_server=False), self._is(peer), connected)
            try:
                return reached, tls, await send_opening(tls, channel)
            except BaseException:
                tls.close(is_reset=True)
                raise
        raise trio.TooSlowError

    # --- where others listen ---

    def forget(self, peer: PeerId) -> None:
        """Ask a peer anew where it listens, and try it at once."""
        self.spares.forget(peer)
        self._routes.pop(peer, None)

    def _route_to(self, peer: PeerId) -> _Route:
        route = self._routes.pop(peer, None) or _Route()
        if len(self._routes) >= MAX_ROUTES:
            del self._routes[next(iter(self._routes))]  # the one that was not used for the longest time
        self._routes[peer] = route
        return route

    async def _where(self, peer: PeerId, route: _Route) -> tuple[BulkAddress, ...]:
        async with route.lock:
            now_s = trio.current_time()
            if now_s < max(route.known_until_s, route.pause.not_before_s):
                return route.addresses
            listed = () if route.is_to_ask else self._options.listed(peer)
            if listed:
                route.addresses, route.known_until_s = listed, now_s + KEPT_FOR_S
                return listed
            try:
                answer = await self._host.call(peer, ADDRESS_CHANNEL, b"", ASK_WITHIN_S)
                route.addresses, kept_for_s = decode_addresses(answer), KEPT_FOR_S
            except (TransportError, RemoteProtocolError) as error:
                log.debug("no_bulk_address", peer=peer, reason=error.one_line())
                route.addresses, kept_for_s = (), FIRST_PAUSE_S
            route.known_until_s = trio.current_time() + kept_for_s
            return route.addresses

    async def tell(self, _peer: PeerId, _request: bytes) -> bytes:
        """Where we listen, for whoever asks."""
        return encode_addresses(self.own())

    def own(self) -> tuple[BulkAddress, ...]:
        """Where we listen; nothing where we do not."""
        if self.port is None:
            return ()
        return own_addresses(self._host.addresses(), self._options.listen_host or "", self.port)

    # --- the listening side ---

    def listen(self) -> None:
        """Begin. Raises MachineError: the port is in use, or the address is not ours."""
        options = self._options
        if options.listen_host is None:
            return
        try:
            listeners = bind_bulk(options.listen_host, options.listen_port)
        except MachineError:
            if not options.may_take_another:
                raise
            listeners = bind_bulk(options.listen_host, 0)
        self.port = int(listeners[0].getsockname()[1])
        host = self._host
        context = partial(self._context, is_server=True)
        rules = DoorRules(context, options.check, host.admits, host.serves, host.serve, self.calls)
        door = TlsDoor(rules, self._lane, self.keep_until_done)
        for listener in listeners:
            self._nursery.start_soon(door.listen, listener)

    def _context(self, *, is_server: bool) -> ssl.SSLContext:
        """TLS with the credential as of now. Raises ConfigError: it cannot be used."""
        own = self._options.credential()
        made = self._contexts.get(is_server)
        if made is None or made[0] != own:
            made = (own, tls_context(own, self._options.ca_certificate_der, is_server=is_server))
            self._contexts[is_server] = made
        return made[1]

    # --- the end of streams and of everything ---

    def keep_until_done(self, ending: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let a stream that we ended wait for its other side."""
        self._num_ending += 1
        self._nursery.start_soon(self._keep, ending)

    async def _keep(self, ending: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await ending()
        except Exception:  # the edge of a nursery: one bad stream must not end the daemon
            log.exception("bulk_stream_end_failed")
        finally:
            self._num_ending -= 1
            ended, self._ended = self._ended, trio.Event()
            ended.set()

    async def finish(self) -> None:
        """Give streams that end a moment."""
        with trio.move_on_after(CLOSE_GRACE_S, shield=True):
            while self._num_ending:
                await self._ended.wait()


@asynccontextmanager
async def open_direct(options: DirectOptions, host: HostNetwork, lane: BulkLane) -> AsyncIterator[DirectWay]:
    """Listen where the options say, and answer others who ask where.

    Raises:
        MachineError: the port is in use, or the address is not ours.
        ConfigError: our credential and key cannot be used.
    """
    async with open_plain_nursery() as nursery:
        way = DirectWay(options, host, lane, nursery)
        way.listen()
        host.serve_calls(ADDRESS_CHANNEL, way.tell)
        try:
            yield way
        finally:
            await way.finish()
