"""The shell of `LineRate`: reads the kernel's statistics of sending streams, and sets each stream's rate."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final, Protocol

import trio

from averaging.network.pacing.line_rate import LineRate, PathStats

LOOK_EVERY_S: Final = 0.05
LOOK_STREAM_S: Final = 0.002
"""The interval grows with the number of streams, because each look costs a system call a stream."""


class PacedSocket(Protocol):
    """A connection with statistics and a settable rate (`TlsSocket`)."""

    def stats(self) -> PathStats | None:
        """The kernel's statistics of the connection; None if it has none."""
        ...

    def pace(self, bytes_per_s: float) -> None:
        """Limit the sending rate; infinite for no limit."""
        ...


class LineShaper:
    """Shapes all direct bulk of one Network.

    Streams report when they send and when they end. A stream whose bytes are all acknowledged is forgotten without a report.
    """

    def __init__(self) -> None:
        self._rate = LineRate()
        self._sending: set[PacedSocket] = set()
        self._looked_s = 0.0

    @property
    def bytes_per_s(self) -> float:
        """The rate of all streams together; infinite while the line is not known."""
        return self._rate.bytes_per_s

    def sending(self, connections: Collection[PacedSocket]) -> None:
        """A frame is about to leave on some or all of these connections."""
        newcomers = set(connections) - self._sending
        if newcomers:
            self._sending |= newcomers
            self._look(newcomers)

    def sent(self) -> None:
        """A frame has left on some connection. Look at the line if the interval has passed."""
        if trio.current_time() - self._looked_s >= max(LOOK_EVERY_S, LOOK_STREAM_S * len(self._sending)):
            self._look()

    def left(self, connections: Collection[PacedSocket]) -> None:
        """Their stream is over. The other streams get the whole line, even if one of these connections is kept for later use."""
        self._sending.difference_update(connections)
        for connection in connections:
            connection.pace(inf)

    def _look(self, newcomers: Collection[PacedSocket] = ()) -> None:
        self._looked_s = trio.current_time()
        stats = {connection: connection.stats() for connection in self._sending}
        paths: dict[object, PathStats] = {}
        for connection, path in stats.items():
            if path is None or (path.is_idle and connection not in newcomers):
                self._sending.discard(connection)
            else:
                paths[connection] = path
        parts = self._rate.update(paths, self._looked_s)
        for connection in self._sending:
            connection.pace(parts[connection])
