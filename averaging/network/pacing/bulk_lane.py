"""The bulk lane of one peer: counts every bulk frame in both directions and holds it to the same two limiters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import trio

from averaging.network.pacing.bulk_limiter import BulkLimiter
from averaging.network.pacing.counters import BulkTally
from averaging.network.pacing.line_shaper import LineShaper
from averaging.network.seams.interfaces import BulkKind
from protocol.errors import CallTimeout, TransportError
from protocol.identity.names import peer_name
from protocol.ids import PeerId

log = structlog.get_logger()

PING_EVERY_S: Final = 0.5


class BulkLane:
    """Limiters, counters, and the pings that measure the effect of bulk on the control lane.

    Attributes:
        tally: payload bytes so far.
        line: shapes the bytes that leave on direct streams.
    """

    def __init__(self, upload_bytes_per_s: float | None = None) -> None:
        self.tally = BulkTally()
        self.line = LineShaper()
        self._limiter = BulkLimiter(upload_bytes_per_s)
        self._down_limiter = BulkLimiter()
        self._began = trio.Event()
        self._peer: PeerId | None = None

    async def pass_up(self, peer: PeerId, kind: BulkKind, num_bytes: int) -> None:
        """Let a frame to `peer` through when its turn comes."""
        self._peer = peer
        self._began.set()
        await self._limiter.pass_bytes(num_bytes)
        self.tally.sent(kind, num_bytes)

    async def took(self, kind: BulkKind, num_bytes: int) -> None:
        """Count a received frame, and hold its reader back to the owner's cap, so that the sender waits as well."""
        await self._down_limiter.pass_bytes(num_bytes)
        self.tally.received(kind, num_bytes)

    def cap(self, upload_bytes_per_s: float | None, download_bytes_per_s: float | None) -> None:
        """The owner's caps from now on, None for none."""
        self._limiter.cap(upload_bytes_per_s)
        self._down_limiter.cap(download_bytes_per_s)

    async def keep_pinging(self, ping: Callable[[PeerId], Awaitable[None]]) -> None:
        """While bulk is under way, measure its effect on the control lane and set the rate by that.

        Args:
            ping: one round trip on the control lane; raises CallTimeout if lost, another TransportError if the peer is gone.
        """
        while True:
            await self._began.wait()
            self._began = trio.Event()
            wanted_s = trio.current_time() + PING_EVERY_S
            await trio.sleep_until(wanted_s)
            lag_s = trio.current_time() - wanted_s
            peer = self._peer
            if peer is None:
                continue
            began_s = trio.current_time()
            try:
                await ping(peer)
            except CallTimeout:
                log.debug("ping_lost", peer=peer_name(peer))
            except TransportError:
                continue  # the peer is gone, which says nothing about the link
            reason = self._limiter.heard_ping(trio.current_time() - began_s, lag_s)
            if reason:
                log.info("bulk_slowed", rate_bytes_per_s=round(self._limiter.rate_bytes_per_s), reason=reason)
