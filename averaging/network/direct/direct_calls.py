"""The calls that go direct: a connection for each peer that is called, beside the streams of bulk, and no call waits long for one.

A call whose peer is not connected to goes over libp2p, and the connection is made beside it: a firewall that swallows packets delays
nobody. Whoever dialled, both ends use it, so that a peer that takes no connections is called over the ones that it made.
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
"""What the opening of a connection for calls asks for."""

IDLE_S: Final = 180.0
LONGER_IDLE_S: Final = 240.0
"""Of the side that was dialled, so that it is the dialler who closes, and no call meets a connection that is just being closed."""

WAIT_S: Final = 0.5
WAIT_SHARE: Final = 0.2
"""A call waits so long, and such a share of its time, for a connection that is being made: over libp2p it costs both ends more."""

QUIET_S: Final = 5.0
"""A connection without a call for so long may give its place to another: nothing is on its way on it."""

MAX_CONNECTIONS: Final = 512
MAX_CONNECTIONS_PER_PEER: Final = 4
MAX_DIALS: Final = 4
"""At a time: calls go over libp2p meanwhile, and bulk has places of its own."""


@dataclass(frozen=True, slots=True)
class CallsHost:
    """What the calls need of the direct way and of the network.

    Attributes:
        admits: whether to serve a peer, None where that cannot be told; may take seconds.
        answer, open_channels: as in `CallRules`.
        where: the peer's addresses that are worth trying now; must not block.
        dial: a connection past its opening, None where there is none.
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
    """Who was let in or refused a moment ago, as at libp2p's door; asked for once for all who wait."""

    def __init__(self, admits: Admits) -> None:
        self._admits = admits
        self._book = VerdictBook()
        self._asking: dict[PeerId, trio.Event] = {}

    async def admits(self, peer: PeerId) -> bool | None:
        """The verdict; None where it could not be had."""
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
    """The connections of one network. What it starts runs in the nursery."""

    def __init__(self, host: CallsHost, nursery: trio.Nursery) -> None:
        self._host = host
        self._nursery = nursery
        self._connections: dict[PeerId, list[CallConnection]] = {}
        self._attempts: dict[PeerId, _Attempt] = {}
        self._dials = trio.Semaphore(MAX_DIALS)
        self._places = CallLimiter(MAX_CALLS_PER_PEER, MAX_CALLS)
        self._verdicts = RecentVerdicts(host.admits)
        self.num_found = 0
        """How often a call found a connection."""

    @property
    def num_connections(self) -> int:
        """That are open."""
        return sum(map(len, self._connections.values()))

    def live(self, peer: PeerId) -> CallConnection | None:
        """A connection that takes a call now."""
        connections = self._connections.get(peer, ())
        return next((connection for connection in reversed(connections) if connection.has_room), None)

    async def find(self, peer: PeerId, channel: str, within_s: float) -> CallConnection | None:
        """A connection for a call that may take `within_s`, made if there is none yet; None where the call should go another way."""
        found = self.live(peer)
        # What strangers are asked lets connections in, and must not wait for one. Those of a peer that takes nothing now are full, and
        # another would be no better.
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
        """The dial that is under way, begun here if it is time for one."""
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
                is_there = self.live(peer) is not None  # it has dialled us meanwhile
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
        """Something went well: what failed before says nothing any more."""
        attempt = self._attempts.get(peer)
        if attempt is not None:
            attempt.pause.worked()

    def has_place(self, peer: PeerId) -> bool:
        """Whether a connection of the peer's is taken, before it is answered."""
        if len(self._connections.get(peer, ())) >= MAX_CONNECTIONS_PER_PEER:
            return False
        return self.num_connections < MAX_CONNECTIONS or self._make_room()

    async def serve(self, tls: TlsSocket, peer: PeerId) -> None:
        """A connection that the peer made, until it ends."""
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
        """Close the connection that nobody used for the longest time; False where all are in use."""
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
