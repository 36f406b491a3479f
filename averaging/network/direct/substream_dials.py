"""Dials substreams for streams that we opened, when one connection does not fill the line (substream_rule.py)."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Final, Protocol, TypeVar

import structlog
import trio

from averaging.network.direct.substream_rule import SubstreamRule
from averaging.network.direct.substreams import TOKEN_BYTES
from averaging.network.direct.tls_socket import TlsSocket
from protocol.identity.names import peer_name
from protocol.ids import PeerId

log = structlog.get_logger()

_T = TypeVar("_T")

LOOK_EVERY_S: Final = 0.25
MOST_IN_ALL: Final = 32
"""Bound of the substreams of all our streams: many streams fill a line together without them."""

KEPT_FOR_S: Final = 600.0
"""Time for which the useful number of connections to a peer is remembered; the path to it may change."""

REFUSED_FOR_S: Final = 60.0
"""Pause after a peer refused a substream: it has no place for one now, or its release knows none."""

CONFIRMED_WITHIN_S: Final = 10.0

USEFUL_AFTER_BYTES: Final = 1 << 20
"""Bytes that a stream must send before it gets the remembered number of connections; a short answer would end before they are made.
"""

MAX_KNOWN: Final = 4096


class Growing(Protocol):
    """A stream that can have substreams (`TlsStream`)."""

    @property
    def connections(self) -> Sequence[TlsSocket]:
        """The connections that carry it now."""
        ...

    def join(self, substream: TlsSocket, token: bytes) -> None:
        """Add a substream with this token, which the stream owns from now on."""
        ...


Dial = Callable[[PeerId], Awaitable[TlsSocket | None]]
"""Dials a connection that the peer accepts as a substream; None if it fails."""


class SubstreamDials:
    """Substreams of all the streams that this peer opens.

    Args:
        num_first: connections that each stream gets at once; with 0 it never has more than one.
    """

    def __init__(self, dial: Dial, nursery: trio.Nursery, num_first: int = 1) -> None:
        self._dial = dial
        self._nursery = nursery
        self._num_first = num_first
        self._num_open = 0
        self._useful: OrderedDict[PeerId, tuple[int, float]] = OrderedDict()
        self._refused_until_s: OrderedDict[PeerId, float] = OrderedDict()

    def growth(self, peer: PeerId) -> Growth:
        """The growth of a new stream to this peer."""
        now_s = trio.current_time()
        if now_s < self._refused_until_s.get(peer, 0.0):
            return Growth(self, peer, 0, 0)
        useful, until_s = self._useful.get(peer, (1, 0.0))
        return Growth(self, peer, self._num_first, useful if now_s < until_s else 1)

    def learned(self, peer: PeerId, num_useful: int) -> None:
        """Remember that `num_useful` connections to this peer have helped."""
        _keep(self._useful, peer, (num_useful, trio.current_time() + KEPT_FOR_S))

    def add(self, peer: PeerId, stream: Growing, number: int) -> None:
        """Start to dial `number` more connections, as far as there is room."""
        for _ in range(min(number, MOST_IN_ALL - self._num_open)):
            try:
                self._nursery.start_soon(self._add, peer, stream)
            except RuntimeError:  # trio raises this if the nursery has closed: the stream ends soon, too
                return
            self._num_open += 1

    async def _add(self, peer: PeerId, stream: Growing) -> None:
        try:
            substream = await self._dial(peer)
            if substream is None:
                _keep(self._refused_until_s, peer, trio.current_time() + REFUSED_FOR_S)
                return
            try:
                token = secrets.token_bytes(TOKEN_BYTES)
                with trio.fail_after(CONFIRMED_WITHIN_S):
                    await substream.send(memoryview(token), 0)  # less than a record: sent at once
                    if not await substream.receive_into(memoryview(bytearray(1)), 0):
                        return
                stream.join(substream, token)
                await substream.closed.wait()
            except (OSError, trio.TooSlowError) as error:
                log.debug("substream_broke", peer=peer_name(peer), reason=str(error)[:200] or "too slow")
            finally:
                substream.close(is_reset=True)
        finally:
            self._num_open -= 1


def _keep(known: OrderedDict[PeerId, _T], peer: PeerId, value: _T) -> None:
    """Keep the newest MAX_KNOWN entries."""
    known.pop(peer, None)
    if len(known) >= MAX_KNOWN:
        known.popitem(last=False)
    known[peer] = value


class Growth:
    """Watches the connections of one stream while it sends, and adds more if they help.

    Args:
        num_first: connections that the stream gets at once; with 0 it never has more than one.
        num_useful: connections that it gets once it has much to send.
    """

    def __init__(self, dials: SubstreamDials, peer: PeerId, num_first: int, num_useful: int) -> None:
        self._dials = dials
        self._peer = peer
        self._num_wanted = num_first
        self._num_useful = num_useful
        self._num_bytes = 0
        self._num_dialled = 0
        self._rule = SubstreamRule()
        self._looked_s = -inf

    def sent(self, stream: Growing, num_bytes: int) -> None:
        """A frame of `num_bytes` has left that is long enough to fill a line."""
        now_s = trio.current_time()
        self._num_bytes += num_bytes
        if self._num_wanted and self._num_bytes >= USEFUL_AFTER_BYTES:
            self._num_wanted = max(self._num_wanted, self._num_useful)
        if not self._num_wanted or now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        number = max(self._num_wanted, self._look(stream.connections, now_s))
        if number > max(1, self._num_dialled):
            self._dials.add(self._peer, stream, number - self._num_dialled)
            self._num_dialled = number

    def _look(self, connections: Sequence[TlsSocket], now_s: float) -> int:
        paths = [path for path in (connection.stats() for connection in connections) if path is not None]
        if not paths or len(paths) < len(connections):
            return 0  # the system has no statistics, or a connection is closed
        before = self._rule.num_useful
        paced_bytes_per_s = sum(connection.paced_bytes_per_s for connection in connections)
        number = self._rule.decide(paths, paced_bytes_per_s, now_s)
        if self._rule.num_useful > before:
            self._dials.learned(self._peer, self._rule.num_useful)
            log.info("substreams_pay", peer=self._peer, connections=len(connections))
        return number
