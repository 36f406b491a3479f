"""The bulk lane of one peer: every frame of every stream, whichever way it goes, is counted here and waits for the same two pacers."""

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
from protocol.ids import PeerId

log = structlog.get_logger()

PING_EVERY_S: Final = 0.5


class BulkLane:
    """Pacers, counters, and the pings that tell what bulk does to the control lane.

    Attributes:
        tally: payload bytes so far.
        line: paces what leaves on direct streams.
    """

    def __init__(self, upload_bytes_per_s: float | None = None) -> None:
        self.tally = BulkTally()
        self.line = LineShaper()
        self._pacer = BulkLimiter(upload_bytes_per_s)
        self._down_pacer = BulkLimiter()
        self._began = trio.Event()
        self._peer: PeerId | None = None

    async def pass_up(self, peer: PeerId, kind: BulkKind, num_bytes: int) -> None:
        """Let a frame to `peer` through when its turn comes."""
        self._peer = peer
        self._began.set()
        await self._pacer.pass_bytes(num_bytes)
        self.tally.sent(kind, num_bytes)

    async def took(self, kind: BulkKind, num_bytes: int) -> None:
        """Hold the reader of a frame that came in back as the owner's cap says, so that the sender waits as well, and count it."""
        await self._down_pacer.pass_bytes(num_bytes)
        self.tally.received(kind, num_bytes)

    def cap(self, upload_bytes_per_s: float | None, download_bytes_per_s: float | None) -> None:
        """The owner's caps from now on, None for none."""
        self._pacer.cap(upload_bytes_per_s)
        self._down_pacer.cap(download_bytes_per_s)

    async def keep_pinging(self, ping: Callable[[PeerId], Awaitable[None]]) -> None:
        """While bulk is under way, measure what it does to the control lane and pace it by that. `ping` takes a byte there and back on
        the control lane, and raises CallTimeout when it is lost and another TransportError when the peer is gone.
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
                log.debug("ping_lost", peer=peer)
            except TransportError:
                continue  # gone, which says nothing about the link
            reason = self._pacer.heard_ping(trio.current_time() - began_s, lag_s)
            if reason:
                log.info("bulk_slowed", rate_bytes_per_s=round(self._pacer.rate_bytes_per_s), reason=reason)
