"""Results whose stream ended before them: their first chunks are kept, and only the rest is asked for again.

A change of attempt ends all streams of the previous attempt, also those between members that stay. If the sum stays the same
(`protocol/rounds/participants.py`) the reducer names the same bytes again, and they need not be sent twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from averaging.arithmetic.slot_buffer import SlotBuffer
from averaging.rounds.traffic.result_ref import NamedResult, ResultRef, ref_of
from protocol.ids import PeerId
from protocol.rounds.messages.messages import SliceSpec
from protocol.rounds.messages.record import Ballot


@dataclass(frozen=True, slots=True)
class PartialResult:
    """The first chunks of a result, fit to apply. Whether they match the result's hash is known only with the rest.

    Attributes:
        memory: of the whole result; the chunks that arrived are its beginning.
        num_bytes: bytes of these chunks.
        hashes: their leaf hashes, in order.
    """

    memory: memoryview
    num_bytes: int = 0
    hashes: tuple[bytes, ...] = ()

    def room(self) -> SlotBuffer:
        """A buffer for the rest of the result."""
        room = SlotBuffer.over(self.memory)
        if self.num_bytes:
            room.take(self.num_bytes)
        return room


class HalfResults:
    """Partial results of one unit's latest attempt that had any. Each holds the memory of all results of the attempt in which it
    began.
    """

    def __init__(self) -> None:
        self._ballot: Ballot | None = None
        self._kept: dict[tuple[PeerId, ResultRef], PartialResult] = {}

    def keep(self, ballot: Ballot, reducer: PeerId, named: NamedResult, half: PartialResult) -> None:
        """Keep a partial result from this reducer, of this attempt."""
        if ballot != self._ballot:
            self._ballot = ballot
            self._kept.clear()
        if half.hashes:
            self._kept[(reducer, _ref(named))] = half

    def take(self, part: SliceSpec, named: NamedResult) -> PartialResult | None:
        """The chunks that are here of the result that the slice's reducer names now. They are given out once, so wrong bytes are
        not used again.
        """
        return self._kept.pop((part.reducer, _ref(named)), None)


def _ref(named: NamedResult) -> ResultRef:
    return named if isinstance(named, ResultRef) else ref_of(named)
