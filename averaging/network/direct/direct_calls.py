"""Direct calls: one connection for each peer that is called, separate from the bulk streams. No call waits long for it.

A call to a peer without a connection goes over libp2p, and the connection is made in the background, so that a firewall that
swallows packets delays nobody. Both ends use a connection, whichever of them dialled. So a peer that takes no connections is called
over its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog
import trio

from averaging.network.direct.dialling import RedialPause
from averaging.network.direct.tls_calls import CallConnection, CallRules
from averaging.network.direct.tls_socket import TlsSocket
from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.call_limits import MAX_CALLS, MAX_CALLS_PER_PEER, Admits, CallLimiter, VerdictBook
from averaging.network.seams.frames import Status
from protocol.ids import PeerId

log = structlog.get_logger()

CALLS_CHANNEL: Final = "potluck-calls"
"""The channel that the opening of a calls connection names."""

IDLE_S: Final = 180.0
LONGER_IDLE_S: Final = 240.0
"""For the side that was dialled: the dialler closes first, so that no call meets a connection that is just being closed."""

WAIT_S: Final = 0.5
WAIT_SHARE: Final = 0.2
"""A call waits for the shorter of both for a connection that is being made, because libp2p costs both ends more."""

QUIET_S: Final = 5.0
"""After this time without a call, a connection may give its place to another: nothing is under way on it."""

MAX_CONNECTIONS: Final = 512
MAX_CONNECTIONS_PER_PEER: Final = 4
MAX_DIALS: Final = 4
"""Dials at a time: calls go over libp2p meanwhile, and bulk has its own dials."""


@dataclass(frozen=True, slots=True)
class CallsHost:
    """The direct way and the network, as far as the calls need them.

    Attributes:
        admits: whether to serve a peer; None if unknown; may take seconds.
        answer, open_channels: as in `CallRules`.
        where: the peer's addresses that are worth a dial now; must not block.
        dial: a connection after its opening; None if it failed.
    """

    admits: Admits
    answer: Callable[[PeerId, str, bytes], Awaitable[tuple[Status, bytes]]]
    open_channels: frozenset[str]
    where: Callable[[PeerId], tuple[BulkAddress, ...]]
    dial: Callable[[PeerId], Awaitable[TlsSocket | None]]


@dataclass(slots=True)
class _Attempt:
    """The latest dial of one peer."""

    began_s: float = 0.0
    pause: RedialPause = field(default_factory=RedialPause)
    addresses: tuple[BulkAddress, ...] = ()
    is_over: bool = True
    done: trio.Event = field(default_factory=trio.Event)


class RecentVerdicts:
    """Recent admissions and refusals, as in the libp2p listener. Calls that wait for the same peer share one question."""

    def __init__(self, admits: Admits) -> None:
        self._admits = admits
        self._book = VerdictBook()
        self._asking: dict[PeerId, trio.Event] = {}

    async def admits(self, peer: PeerId) -> bool | None:
        """The verdict; None if it is unknown."""
        while True:
            counts, verdict = self._book.at(peer, trio.current_time())
            if counts:
                return verdict
            asking = self._asking.get(peer)
            if asking is None:
                return await self._ask(peer)
            await asking.wait()

    async def _ask(self, peer: PeerId) -> bool | None:
        asked = self._asking[peer] = trio.Event()
        try:
            verdict = await self._admits(peer)
            self._book.remember(peer, verdict, trio.current_time())
            return verdict
        finally:
            del self._asking[peer]
            asked.set()


class DirectCalls:
    """The calls connections of one network. Its tasks run in the given nursery."""

    def __init__(self, host: CallsHost, nursery: trio.Nursery) -> None:
        self._host = host
        self._nursery = nursery
        self._connections: dict[PeerId, list[CallConnection]] = {}
        self._attempts: dict[PeerId, _Attempt] = {}
        self._dials = trio.Semaphore(MAX_DIALS)
        self._places = CallLimiter(MAX_CALLS_PER_PEER, MAX_CALLS)
        self._verdicts = RecentVerdicts(host.admits)
        self.num_found = 0
        """Number of calls that found a connection."""

    @property
    def num_connections(self) -> int:
        """Number of open connections."""
        return sum(map(len, self._connections.values()))

    def live(self, peer: PeerId) -> CallConnection | None:
        """A connection that takes a call now."""
        connections = self._connections.get(peer, ())
        return next((connection for connection in reversed(connections) if connection.has_room), None)

    async def find(self, peer: PeerId, channel: str, within_s: float) -> CallConnection | None:
        """A connection for a call that may take `within_s`, made if there is none; None if the call should use libp2p."""
        found = self.live(peer)
        # Calls on open channels decide about admission and must not wait for a connection. If the peer has connections, they are
        # full, and another one would not help.
        if found is None and channel not in self._host.open_channels and peer not in self._connections:
            found = await self._made(peer, within_s)
        self.num_found += found is not None
        return found

    async def _made(self, peer: PeerId, within_s: float) -> CallConnection | None:
        attempt = self._begun(peer)
        if attempt is None:
            return None
        with trio.move_on_at(attempt.began_s + min(WAIT_S, WAIT_SHARE * within_s)):
            await attempt.done.wait()
        return self.live(peer)

    def _begun(self, peer: PeerId) -> _Attempt | None:
        """The dial under way, started here if it is due."""
        attempt = self._attempts.get(peer)
        if attempt is not None and not attempt.is_over:
            return attempt
        now_s = trio.current_time()
        addresses = self._host.where(peer)
        is_paused = attempt is not None and now_s < attempt.pause.not_before_s and attempt.addresses == addresses
        if is_paused or not addresses:
            return None
        if self.num_connections >= MAX_CONNECTIONS and not self._make_room():
            return None
        if attempt is None:
            if len(self._attempts) >= MAX_CONNECTIONS:
                self._forget_oldest()
            attempt = self._attempts[peer] = _Attempt()
        attempt.began_s, attempt.is_over, attempt.done, attempt.addresses = now_s, False, trio.Event(), addresses
        self._start_soon(partial(self._dial, peer, attempt))
        return attempt

    def _forget_oldest(self) -> None:
        over = (peer for peer, attempt in self._attempts.items() if attempt.is_over)
        oldest = next(over, None)
        if oldest is not None:
            del self._attempts[oldest]

    async def _dial(self, peer: PeerId, attempt: _Attempt) -> None:
        tls = None
        try:
            async with self._dials:
                is_there = self.live(peer) is not None  # the peer has dialled us meanwhile
                if not is_there:
                    tls = await self._host.dial(peer)
        finally:
            attempt.is_over = True
            if tls is not None or self.live(peer) is not None:
                attempt.pause.worked()
            else:
                attempt.pause.failed(trio.current_time())
            if tls is None:
                attempt.done.set()
        if tls is not None:
            await self._keep(tls, peer, IDLE_S, attempt.done)

    def forget(self, peer: PeerId) -> None:
        """A stream reached the peer, so end the pause after failed dials."""
        attempt = self._attempts.get(peer)
        if attempt is not None:
            attempt.pause.worked()

    def has_place(self, peer: PeerId) -> bool:
        """Whether another connection from the peer may be accepted; checked before it is answered."""
        if len(self._connections.get(peer, ())) >= MAX_CONNECTIONS_PER_PEER:
            return False
        return self.num_connections < MAX_CONNECTIONS or self._make_room()

    async def serve(self, tls: TlsSocket, peer: PeerId) -> None:
        """Serve a connection that the peer made until it ends."""
        self.forget(peer)
        await self._keep(tls, peer, LONGER_IDLE_S, trio.Event())

    async def _keep(self, tls: TlsSocket, peer: PeerId, idle_s: float, is_up: trio.Event) -> None:
        host = self._host
        rules = CallRules(
            self._verdicts.admits, host.open_channels, self._places, host.answer, self._start_soon, idle_s
        )
        connection = CallConnection(tls, peer, rules)
        self._connections.setdefault(peer, []).append(connection)
        is_up.set()
        try:
            await connection.run()
        finally:
            self._connections[peer].remove(connection)
            if not self._connections[peer]:
                del self._connections[peer]

    def _start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(partial(_guarded, task))

    def _make_room(self) -> bool:
        """Close the least recently used connection; False if all are in use."""
        before_s = trio.current_time() - QUIET_S
        every = (one for connections in self._connections.values() for one in connections if one.is_open)
        idle = [one for one in every if one.is_idle and one.used_s < before_s]
        if not idle:
            return False
        min(idle, key=lambda connection: connection.used_s).close()
        return True


async def _guarded(task: Callable[[], Awaitable[None]]) -> None:
    try:
        await task()
    except Exception:  # the edge of a nursery: one bad request must not end the daemon
        log.exception("direct_call_failed")
