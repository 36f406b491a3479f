"""Whether a larger micro-batch would exceed the memory limit of a peer's owner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One reading, in resident bytes.

    Attributes:
        family_bytes: all of the peer's processes together.
        own_bytes: this process.
        own_peak_bytes: the highest value of this process. Only the peak shows memory that lives for a part of a step.
    """

    family_bytes: int
    own_bytes: int
    own_peak_bytes: int


def may_double(
    most_bytes: int, later_bytes: int, before: MemoryUse, after: MemoryUse, *, num_processes: int = 1
) -> bool:
    """Whether twice as many sequences stay below `most_bytes`, together with `later_bytes` that are not allocated yet.

    `before` must be from before the whole search. An allocator keeps memory of smaller sizes, which would hide in a later reading.

    Args:
        num_processes: of the peer that search side by side, each on its card: the others will take as much as this one.
    """
    cost_bytes = max(0, after.own_peak_bytes - before.own_bytes)
    return before.family_bytes + num_processes * (later_bytes + 2 * cost_bytes) <= most_bytes
