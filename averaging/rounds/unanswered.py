"""Heartbeats that a peer did not answer: after the first one it is asked again at once, after the second it counts as silent (R4).

Rules: R4 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from typing import Final

from protocol.errors import CallTimeout, PotluckError
from protocol.ids import PeerId

SILENT_AFTER: Final = 2
"""Heartbeats in a row without an answer, each within its own limit. One may be lost behind bulk on a thin line."""


class Unanswered:
    """The peers of one process that did not answer its latest heartbeat."""

    def __init__(self) -> None:
        self._since: dict[PeerId, tuple[int, float]] = {}

    def note(self, peer: PeerId, reply: bytes | PotluckError, sent_at_s: float) -> tuple[int, float]:
        """Note the result of one heartbeat.

        Args:
            sent_at_s: when it was sent, monotonic time.

        Returns:
            (heartbeats in a row that the peer has not answered, when the first of them was sent). The count begins anew after
            `SILENT_AFTER`.
        """
        count, since_s = self._since.pop(peer, (0, sent_at_s))
        if not isinstance(reply, CallTimeout):
            return 0, sent_at_s
        if count + 1 < SILENT_AFTER:
            self._since[peer] = (count + 1, since_s)
        return count + 1, since_s
