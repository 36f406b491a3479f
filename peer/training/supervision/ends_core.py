"""Tells which rank's end is the reason when the processes of one replica end together. Pure.

One process ends by itself. Those that wait for it in a collective or at its socket then fail too, and may be heard first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

EndKind = Literal["out_of_memory", "failed", "silent", "echo"]
"""Last words of a process: that memory ran out, another failure, none, or that only another process is gone."""

_ORDER: Final[tuple[EndKind, ...]] = ("out_of_memory", "failed", "silent")
"""The reason that helps most first: after running out of memory the next life takes less of it."""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """A rank whose process ended, or said why it ends."""

    rank: int
    kind: EndKind


def cause_of(ends: Sequence[RankEnd], num_ranks: int) -> RankEnd | None:
    """The end that made the others end, of those seen so far. None while only echoes were seen and another rank may still say
    more.
    """
    for kind in _ORDER:
        found = next((end for end in ends if end.kind == kind), None)
        if found is not None:
            return found
    return ends[0] if ends and len(ends) == num_ranks else None


def card_words(device: str, rank: int) -> str:
    """A rank as its owner knows it: by the number of its card, or by its own where its device has none."""
    _, _, number = device.partition(":")
    return f"card {number or rank}"
