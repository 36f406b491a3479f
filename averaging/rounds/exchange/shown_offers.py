"""The contributions that this peer can show to others who compute a sum again: those on the running base, and for a while those on the
one before. Audits begin when a record is settled, and its commit may be there before they have ended.

Rules: R27 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from averaging.network.seams.interfaces import Offload, Stream
from averaging.rounds.exchange.offered_contributions import Offers
from averaging.rounds.lineage.round_context import Tasks
from protocol.ids import CommitId
from protocol.rounds.messages.requests import FetchChunk
from protocol.rounds.messages.wire import encode_body

SHOWN_FOR_S: Final = 10.0
"""How long contributions stay in memory after their commit, unless the next round begins earlier: twice as long as an audit takes."""


class ShownOffers:
    """The offers on two bases at most."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._now: tuple[CommitId, Offers] | None = None
        self._past: tuple[CommitId, Offers] | None = None

    def begin(self, base: CommitId, offers: Offers) -> None:
        """Offers on a new base will come; those on earlier ones are forgotten, since memory is needed now."""
        self._now, self._past = (base, offers), None

    def end(self) -> None:
        """The base is committed: show its offers a while longer."""
        if self._now is not None:
            self._past, self._now = self._now, None
            self._tasks.spawn(self._forget_later, self._past[0])

    async def _forget_later(self, base: CommitId) -> None:
        await trio.sleep(SHOWN_FOR_S)
        if self._past is not None and self._past[0] == base:
            self._past = None

    def on(self, base: CommitId) -> Offers | None:
        """The offers on a base, while they are here."""
        for known in (self._now, self._past):
            if known is not None and known[0] == base:
                return known[1]
        return None


async def send_shown(offers: Offers | None, request: FetchChunk, offload: Offload, stream: Stream) -> None:
    """Send this chunk of each asked contribution that is here; an empty end answers where none is."""
    if offers is None:
        return
    for shown in await offload.run(partial(offers.shown, request.chunk, frozenset(request.roots))):
        await stream.send_frame(encode_body(shown))
