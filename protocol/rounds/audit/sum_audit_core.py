"""Which chunks of others' sums a member computes again, and when a result looks wrong at first sight.

Audits are drawn in private, after the reducers have signed: nobody can know which chunks will be looked at. The first sight costs no
byte. A member knows its own contribution and the result: an honest mean mostly points where its own delta does, and has a similar
length. That is no proof, since a slow or unusual member may find otherwise of an honest mean, so it only decides which slice is
audited for certain. Findings in vain make the next such audit rarer, for a member that is unlike the others would ask in each round.

Rules: R27 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.ids import PeerId
from protocol.rounds.messages.record import CommitRecord, SliceRecord

MOST_AUDITED: Final = 16
"""Chunks that one member audits in a round at most, whatever the share: each takes a chunk of every contribution into memory."""

MOST_LONGER: Final = 3.0
"""A mean that is longer than so many times the own delta looks wrong. Honest deltas of one run have mostly similar lengths, and a
mean is at most as long as its longest part.
"""

GLANCED_CHUNKS: Final = 16
"""Chunks of a slice that the first sight takes."""

MOST_IN_VAIN: Final = 10
"""Halvings of the chance to follow a suspicion."""

Draw = Callable[[], float]
"""A number in [0, 1) that nobody else can guess."""


@dataclass(frozen=True, slots=True)
class Pick:
    """A chunk to audit, by its number in the unit's grid, and the slice that it lies in."""

    part: SliceRecord
    chunk: int
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class Glance:
    """The first sight of a slice.

    Attributes:
        own_squared, result_squared: squared lengths of the own delta and of the result over the same chunks.
        product: the inner product of both.
    """

    own_squared: float
    result_squared: float
    product: float

    @property
    def looks_wrong(self) -> bool:
        """Whether the result points away from the own delta, or is much longer. Without a delta nothing looks wrong."""
        if not self.own_squared > 0.0 or not self.result_squared > 0.0:
            return False
        return not self.product > 0.0 or self.result_squared > MOST_LONGER**2 * self.own_squared


def num_audited(share: float, num_chunks: int, num_others: int, draw: Draw) -> int:
    """How many chunks this member audits in a round.

    A chunk is fetched of every contribution that a sum counts, but for the own one. So the bytes of `k` audits are `share` of a
    contribution where k = share x chunks / others. Below one it is a chance.

    Args:
        share: `[round] audit_share`, from 0 to 1.
        num_chunks: of the whole unit, at least 1.
        num_others: contributions of others in the round, at least 1.
    """
    expected = share * num_chunks / num_others
    whole = math.floor(expected)
    return min(MOST_AUDITED, whole + (draw() < expected - whole))


def others_slices(record: CommitRecord, me: PeerId) -> tuple[SliceRecord, ...]:
    """The slices of a record that somebody else summed."""
    return tuple(part for part in record.slices if part.reducer != me)


def glanced_chunks(part: SliceRecord, draw: Draw) -> Sequence[int]:
    """The chunks of a slice for the first sight: all of a short one, else some at random, in order."""
    numbers = range(part.first_chunk, part.stop_chunk)
    if len(numbers) <= GLANCED_CHUNKS:
        return numbers
    return sorted({numbers[_place(draw, len(numbers))] for _ in range(GLANCED_CHUNKS)})


def picks(
    record: CommitRecord, me: PeerId, share: float, suspects: Collection[SliceRecord], num_in_vain: int, draw: Draw
) -> tuple[Pick, ...]:
    """The chunks that this member audits of a settled record.

    Args:
        suspects: slices that look wrong at first sight. One of them is audited, besides what the share allows.
        num_in_vain: suspicions in a row that turned out wrong. Each halves the chance that the next one is followed.
    """
    parts = others_slices(record, me)
    if not parts or share <= 0.0:
        return ()
    found: dict[int, Pick] = {}
    if suspects and draw() < 0.5 ** min(num_in_vain, MOST_IN_VAIN):
        part = sorted(suspects, key=lambda each: each.first_chunk)[_place(draw, len(suspects))]
        chunk = part.first_chunk + _place(draw, part.stop_chunk - part.first_chunk)
        found[chunk] = Pick(part, chunk, is_suspect=True)
    numbers = [range(part.first_chunk, part.stop_chunk) for part in parts]
    total = sum(map(len, numbers))
    num_others = max(1, sum(1 for entry in record.contributors if entry.peer != me))
    for _ in range(num_audited(share, record.slices[-1].stop_chunk, num_others, draw)):
        place = _place(draw, total)
        for part, chunks in zip(parts, numbers, strict=True):
            if place < len(chunks):
                found.setdefault(chunks[place], Pick(part, chunks[place]))
                break
            place -= len(chunks)
    return tuple(found.values())


def _place(draw: Draw, num: int) -> int:
    return min(int(draw() * num), num - 1)
