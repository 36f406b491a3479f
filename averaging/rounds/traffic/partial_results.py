"""Results that were on their way when their stream ended: what came of them is kept, and only the rest is asked for again.

A change of attempt ends all streams of the attempt before, also those between members that stay. Where the sum stays the same
(`protocol/rounds/participants.py`) the reducer names the same bytes again, and they need not be sent twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from averaging.arithmetic.slot_buffer import SlotBuffer
from averaging.rounds.traffic.result_ref import NamedResult, ResultRef, ref_of
from protocol.ids import PeerId
from protocol.rounds.messages.messages import Ballot, SliceSpec


@dataclass(frozen=True, slots=True)
class PartialResult:
    """The first chunks of a result, fit to be applied, but not yet known to be what their hash names: the rest will tell.

    Attributes:
        memory: of the whole result; the chunks that came are its beginning.
        num_bytes: that these chunks have there.
        hashes: their leaf hashes, in order.
    """

    memory: memoryview
    num_bytes: int = 0
    hashes: tuple[bytes, ...] = ()

    def room(self) -> SlotBuffer:
        """Gives out what lies behind them."""
        room = SlotBuffer.over(self.memory)
        if self.num_bytes:
            room.take(self.num_bytes)
        return room


class HalfResults:
    """Those of one unit's last attempt that had any. Each holds the memory of all results of the attempt in which it began."""

    def __init__(self) -> None:
        self._ballot: Ballot | None = None
        self._kept: dict[tuple[PeerId, ResultRef], PartialResult] = {}

    def keep(self, ballot: Ballot, reducer: PeerId, named: NamedResult, half: PartialResult) -> None:
        """It came from this reducer alone, in this attempt."""
        if ballot != self._ballot:
            self._ballot = ballot
            self._kept.clear()
        if half.hashes:
            self._kept[(reducer, _word(named))] = half

    def take(self, part: SliceSpec, named: NamedResult) -> PartialResult | None:
        """What is here of the result that the slice's reducer names now; nobody gets it twice, so bytes that turn out to be others
        than were named are gone with it.
        """
        return self._kept.pop((part.reducer, _word(named)), None)


def _word(named: NamedResult) -> ResultRef:
    return named if isinstance(named, ResultRef) else ref_of(named)
