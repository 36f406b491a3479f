"""Whether more sequences at a time would pass the memory that a peer's owner allows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One look, in resident bytes.

    Attributes:
        family_bytes: of all of the peer's processes together.
        own_bytes: of this one.
        own_peak_bytes: the most that this one ever held: what lives for a part of a step is seen there alone.
    """

    family_bytes: int
    own_bytes: int
    own_peak_bytes: int


def may_double(most_bytes: int, later_bytes: int, before: MemoryUse, after: MemoryUse) -> bool:
    """Whether twice as many sequences stay below `most_bytes`, beside the `later_bytes` that are not taken yet.

    `before` is from before all of the search: an allocator that keeps what a smaller size took would hide it from a later look.
    """
    cost_bytes = max(0, after.own_peak_bytes - before.own_bytes)
    return before.family_bytes + later_bytes + 2 * cost_bytes <= most_bytes
