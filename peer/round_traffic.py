"""What went over the wire for each round: payload between one commit and the next, as this process saw them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from averaging.network.seams import TrafficCount
from protocol.ids import CommitId

KEPT_ROUNDS: Final = 256


@dataclass(frozen=True, slots=True)
class RoundBytes:
    """Payload of both lanes since the commit before; since the start of the process at the first one."""

    up: int
    down: int


class RoundTraffic:
    """Call `committed` at each commit. Several that come together, as when rounds were missed, leave all bytes to the first."""

    def __init__(self) -> None:
        self._before = RoundBytes(0, 0)
        self._rounds: dict[CommitId, RoundBytes] = {}

    def committed(self, commit: CommitId, traffic: TrafficCount) -> RoundBytes:
        """The bytes of this round."""
        taken = RoundBytes(traffic.bytes_up - self._before.up, traffic.bytes_down - self._before.down)
        self._before = RoundBytes(traffic.bytes_up, traffic.bytes_down)
        self._rounds[commit] = taken
        if len(self._rounds) > KEPT_ROUNDS:
            del self._rounds[next(iter(self._rounds))]
        return taken

    def of(self, commit: CommitId) -> RoundBytes | None:
        """The bytes of a round, None for one that was not seen by this process, or long ago."""
        return self._rounds.get(commit)
