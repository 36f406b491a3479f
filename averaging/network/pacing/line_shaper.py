"""The shell of `LineRate`: asks the kernel of the streams that send, and tells it how fast each may be."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final, Protocol

import trio

from averaging.network.pacing.line_rate import LineRate, PathStats

LOOK_EVERY_S: Final = 0.05
LOOK_STREAM_S: Final = 0.002
"""For each stream, if that is longer: to look at 31 of them takes 77 us."""


class PacedSocket(Protocol):
    """A connection that tells how it goes, and lets itself be held back (`TlsSocket`)."""

    def look(self) -> PathStats | None:
        """What the kernel says of what it sends; None where it says nothing."""
        ...

    def pace(self, bytes_per_s: float) -> None:
        """Send no faster than that; infinite for as fast as it likes."""
        ...


class LineShaper:
    """All direct bulk of one Network. Streams say when they send, and when they are over; one that has sent all, and hears that it has
    arrived, is forgotten by itself.
    """

    def __init__(self) -> None:
        self._pace = LineRate()
        self._sending: set[PacedSocket] = set()
        self._looked_s = 0.0

    @property
    def bytes_per_s(self) -> float:
        """What all streams together may send; infinite while the line is not known."""
        return self._pace.bytes_per_s

    def sending(self, connections: Collection[PacedSocket]) -> None:
        """A frame is about to leave on these, all or some of them."""
        newcomers = set(connections) - self._sending
        if newcomers:
            self._sending |= newcomers
            self._look(newcomers)

    def sent(self) -> None:
        """A frame has left somewhere: time to look, perhaps."""
        if trio.current_time() - self._looked_s >= max(LOOK_EVERY_S, LOOK_STREAM_S * len(self._sending)):
            self._look()

    def left(self, connections: Collection[PacedSocket]) -> None:
        """Their stream is over: the others have the whole line, also where one of these is kept and says a word now and then."""
        self._sending.difference_update(connections)
        for connection in connections:
            connection.pace(inf)

    def _look(self, newcomers: Collection[PacedSocket] = ()) -> None:
        self._looked_s = trio.current_time()
        looks = {connection: connection.look() for connection in self._sending}
        paths: dict[object, PathStats] = {}
        for connection, path in looks.items():
            if path is None or (path.is_idle and connection not in newcomers):
                self._sending.discard(connection)
            else:
                paths[connection] = path
        parts = self._pace.look(paths, self._looked_s)
        for connection in self._sending:
            connection.pace(parts[connection])
