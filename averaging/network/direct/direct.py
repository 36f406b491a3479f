"""The direct way, over TCP and TLS 1.3 to an address that the other peer published: bulk streams, and the calls of direct_calls.py.

A peer's address stands in its directory record. If it does not, or nobody answers there, the peer is asked once on the control
lane, and the answer is cached. A peer that cannot be reached directly is left to libp2p for a pause that grows fourfold with each
failure, because a stream that dials a closed firewall only waits.
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
from averaging.network.direct.substream_dials import SubstreamDials
from averaging.network.direct.substreams import SUBSTREAM_CHANNEL
from averaging.network.direct.tls_identity import CheckCredential, TlsCredential, tls_context
from averaging.network.direct.tls_listener import AcceptRules, TlsListener, bind_bulk
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
from protocol.identity.names import peer_name
from protocol.ids import PeerId

log = structlog.get_logger()

ADDRESS_CHANNEL: Final = "bulk-address"
ASK_WITHIN_S: Final = 2.0
CONNECT_WITHIN_S: Final = 2.5
"""Half of the time that callers allow for opening a stream, so that libp2p still has its turn."""

CONNECTED_SHARE: Final = 0.8
"""Share of the caller's time limit that a made connection may take to answer.

A peer that accepted the connection and is slow is busy. It would be as slow over libp2p, which costs both ends several times as
much.
"""

FIRST_WITHIN_S: Final = 0.8
"""Time that a stream spends on an address that has never worked, since a router without forwarding only makes it wait.

The address is then tried in the background with the usual time limit.
"""

CALLS_WITHIN_S: Final = 10.0
"""Time limit for a calls connection to a peer that takes TCP connections; calls do not wait for it."""

KEPT_FOR_S: Final = 600.0
"""Time for which a peer's answer is cached, even an empty one; the peer may listen elsewhere later."""

PLACE_SHARE: Final = 0.4
"""Share of the caller's time limit to wait for a free dial; as much is left for the dial itself and for libp2p."""

MAX_DIALS: Final = 8
"""Connections made at a time: a handshake costs processor time at both ends, and of many begun together each takes as long as all.
"""
MAX_ROUTES: Final = 4096
CLOSE_GRACE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class DirectOptions:
    """Settings of the direct way.

    Attributes:
        credential: returns our present credential and key; called at each connection, cheap.
        ca_certificate_der: the run's CA certificate, DER.
        check: verifies a credential and returns its peer.
        listen_host: address to listen on; None for a peer that only dials.
        listen_port: 0 for any free port.
        may_take_another: take any free port if `listen_port` is in use, because nobody chose that one.
        first_within_s: time that a stream spends on an address that has never worked.
        listed: a peer's bulk addresses in the directory; empty if there are none.
        num_first_substreams: substreams that a stream opens at once; it gets more if they help (substream_rule.py), but none with 0.
    """

    credential: Callable[[], TlsCredential]
    ca_certificate_der: bytes
    check: CheckCredential
    listen_host: str | None = None
    listen_port: int = 0
    may_take_another: bool = False
    first_within_s: float = FIRST_WITHIN_S
    listed: Callable[[PeerId], tuple[BulkAddress, ...]] = lambda _: ()
    num_first_substreams: int = 1


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """The network that the direct way belongs to, as far as it needs it.

    Attributes:
        call: `Network.call`, over libp2p: asks peers for their addresses.
        addresses: `Network.addresses`.
        answer, open_channels: as in `CallsHost`.
        admits, serves, serve: as in `AcceptRules`.
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
    """Knowledge of the way to one peer."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.addresses: tuple[BulkAddress, ...] = ()
        self.known_until_s = 0.0
        self.pause = RedialPause()
        self.has_worked = False
        self.is_to_ask = False
        self.mute = set[BulkAddress]()
        """Addresses that accepted a connection and stayed silent until the time limit. Another machine may stand there, so they do
        not get the longer time limit of a busy peer.
        """

    def failed(self, now_s: float) -> bool:
        """Pause, and then ask the peer first where it listens now.

        Returns:
            True for the first of several streams that failed together; the others change nothing.
        """
        if now_s < self.pause.not_before_s:
            return False
        self.known_until_s = 0.0
        self.is_to_ask = True
        self.pause.failed(now_s)
        return True

    def said_nothing(self, address: BulkAddress, of: Sequence[BulkAddress]) -> None:
        """Remember a silent address. If all of the peer's addresses are silent, the peer is only busy."""
        self.mute.add(address)
        if self.mute.issuperset(of):
            self.mute.clear()

    def worked(self, address: BulkAddress) -> None:
        """Begin with this address the next time."""
        self.has_worked = True
        self.is_to_ask = False
        self.mute.discard(address)
        self.pause.worked()
        self.addresses = (address, *(other for other in self.addresses if other != address))


class DirectWay:
    """Direct streams and calls of one network. Made by `open_direct`.

    Attributes:
        port: the port that we listen on; None if we do not listen.
        calls: the direct calls.
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
        self._substreams = SubstreamDials(
            partial(self._dial_for, SUBSTREAM_CHANNEL), nursery, options.num_first_substreams
        )
        self.spares = SpareConnections(nursery)

    async def open_stream(self, peer: PeerId, channel: str, within_s: float) -> Stream | None:
        """A direct stream, or None if there is no direct way now. `within_s` is the caller's time limit.

        Raises:
            TransportError, RemoteProtocolError: the peer was reached and refused.
        """
        if peer == self._host.peer_id:
            return None
        until_s = trio.current_time() + CONNECTED_SHARE * within_s
        own = self._options.credential()
        spare = await self.spares.reopened(peer, channel, own, self._is(peer), CONNECTED_SHARE * within_s)
        if spare is not None:
            return self._stream(peer, channel, *spare, own)
        if trio.current_time() >= until_s:
            return None  # the peer is busy, which says nothing about the way
        route = self._route_to(peer)
        addresses = await self._where(peer, route)
        if not addresses or trio.current_time() < route.pause.not_before_s:
            return None
        try:
            with trio.fail_after(PLACE_SHARE * within_s):
                await self._dials.acquire()
        except trio.TooSlowError:
            return None  # other peers take all dials, which says nothing about this one
        try:
            if trio.current_time() < route.pause.not_before_s:
                return None  # another stream has failed meanwhile
            reached, tls, status = await self._opened(peer, route, addresses, channel, until_s)
        except (OSError, trio.TooSlowError, PotluckError) as error:
            is_first = route.failed(trio.current_time())
            log.info(
                "no_direct_way",
                peer=peer_name(peer),
                reason=str(error)[:200] or "too slow",
                pause_s=route.pause.pause_s,
            )
            if is_first and isinstance(error, trio.TooSlowError) and not route.has_worked:
                self._nursery.start_soon(self._try_in_background, peer, route, addresses)
            return None
        finally:
            self._dials.release()
        route.worked(reached)
        self.calls.forget(peer)
        return self._stream(peer, channel, tls, status, own)

    def _stream(self, peer: PeerId, channel: str, tls: TlsSocket, status: Status, own: TlsCredential) -> TlsStream:
        """A stream over an opened connection, which is kept afterwards. Raises as `open_stream` if the peer refused."""
        if status is not Status.FINE:
            tls.close()
            raise refusal(status, peer, channel)
        ends = Ends(self.keep_until_done, partial(self.spares.keep, peer, own=own))
        return TlsStream(tls, peer, channel, self._lane, ends, growth=self._substreams.growth(peer))

    def _where_known(self, peer: PeerId) -> tuple[BulkAddress, ...]:
        """Addresses for calls: first the directory's, which is told of a new port, then those that streams have found."""
        route = self._routes.get(peer)
        if peer == self._host.peer_id or (route is not None and trio.current_time() < route.pause.not_before_s):
            return ()
        return tuple(dict.fromkeys((*self._options.listed(peer), *(route.addresses if route is not None else ()))))

    async def _dial_for(self, channel: str, peer: PeerId) -> TlsSocket | None:
        """A connection for calls or a substream. It does not ask the peer for its address, which would be a call itself. Its
        failure does not keep streams from trying.
        """
        route = self._route_to(peer)
        addresses = self._where_known(peer)
        try:
            until_s = trio.current_time() + CALLS_WITHIN_S
            reached, tls, status = await self._opened(peer, route, addresses, channel, until_s)
        except (OSError, trio.TooSlowError, PotluckError) as error:
            log.debug("no_connection", peer=peer_name(peer), channel=channel, reason=str(error)[:200] or "too slow")
            return None
        if status is not Status.FINE:
            tls.close()
            return None
        route.worked(reached)
        return tls

    async def _try_in_background(self, peer: PeerId, route: _Route, addresses: tuple[BulkAddress, ...]) -> None:
        """Try a distant peer with more time. On success the next stream goes there at once."""
        with trio.move_on_after(CONNECT_WITHIN_S):
            try:
                reached, tls = await dial_first(addresses, self._context(is_server=False), self._is(peer))
            except (OSError, PotluckError) as error:
                log.debug("no_direct_way_either", peer=peer_name(peer), reason=str(error)[:200])
                return
            tls.close()
            route.worked(reached)

    def _is(self, peer: PeerId) -> Callable[[bytes], None]:
        def check(certificate_der: bytes) -> None:
            found = self._options.check(certificate_der)
            if found != peer:
                raise RefusedError(f"{found} answers at the address of {peer}", f"the credential of {peer}")

        return check

    async def _opened(
        self, peer: PeerId, route: _Route, addresses: tuple[BulkAddress, ...], channel: str, until_s: float
    ) -> tuple[BulkAddress, TlsSocket, Status]:
        """A connection and the peer's answer to our opening. Raises OSError, trio.TooSlowError, PotluckError."""
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
        """Ask the peer again where it listens, and try it at once."""
        self.spares.forget(peer)
        self._routes.pop(peer, None)

    def _route_to(self, peer: PeerId) -> _Route:
        route = self._routes.pop(peer, None) or _Route()
        if len(self._routes) >= MAX_ROUTES:
            del self._routes[next(iter(self._routes))]  # the least recently used one
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
                log.debug("no_bulk_address", peer=peer_name(peer), reason=error.one_line())
                route.addresses, kept_for_s = (), FIRST_PAUSE_S
            route.known_until_s = trio.current_time() + kept_for_s
            return route.addresses

    async def tell(self, _peer: PeerId, _request: bytes) -> bytes:
        """Answer a request for our addresses."""
        return encode_addresses(self.own())

    def own(self) -> tuple[BulkAddress, ...]:
        """The addresses that we listen on; empty if we do not listen."""
        if self.port is None:
            return ()
        return own_addresses(self._host.addresses(), self._options.listen_host or "", self.port)

    # --- the listening side ---

    def listen(self) -> None:
        """Start to listen. Raises MachineError: the port is in use, or the address is not ours."""
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
        rules = AcceptRules(context, options.check, host.admits, host.serves, host.serve, self.calls)
        tls = TlsListener(rules, self._lane, self.keep_until_done)
        for listener in listeners:
            self._nursery.start_soon(tls.listen, listener)

    def _context(self, *, is_server: bool) -> ssl.SSLContext:
        """TLS with our present credential. Raises ConfigError: it cannot be used."""
        own = self._options.credential()
        made = self._contexts.get(is_server)
        if made is None or made[0] != own:
            made = (own, tls_context(own, self._options.ca_certificate_der, is_server=is_server))
            self._contexts[is_server] = made
        return made[1]

    # --- the end of streams and of everything ---

    def keep_until_done(self, ending: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let a stream that we ended wait for the other side."""
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
        """Give ending streams a moment."""
        with trio.move_on_after(CLOSE_GRACE_S, shield=True):
            while self._num_ending:
                await self._ended.wait()


@asynccontextmanager
async def open_direct(options: DirectOptions, host: HostNetwork, lane: BulkLane) -> AsyncIterator[DirectWay]:
    """Listen as the options say, and answer requests for our addresses.

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
