"""How many checkpoints the host keeps: the newest ones whole, and older ones thinned out by their age. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_ALL_OF: Final = 8
"""The newest lasting intervals, of which each keeps one. Twice as far back it is every second, then every fourth, and so on."""


@dataclass(frozen=True, slots=True)
class KeptCheckpoints:
    """The most checkpoints at one time. `old` ones have no momentum."""

    whole: int
    old: int


def spacing(interval: int, newest: int) -> int:
    """The number of intervals, a power of two, that keep one checkpoint together with this interval. `newest` is the newest interval.

    A span of n intervals begins at a multiple of n, and its end is at least 4 n intervals old. So spans never overlap, and as the run
    goes on two of them become one.
    """
    span = 1
    while newest - (interval // (2 * span) + 1) * 2 * span + 1 >= _ALL_OF * span:
        span *= 2
    return span


def most_lasting(newest: int) -> int:
    """The most spans of `spacing` that there are at one time until interval `newest`: the 9 newest intervals, and 5 of each size."""
    most, span = min(newest, _ALL_OF) + 1, 2
    while newest + 2 >= 6 * span:
        most += min(5, (newest + 2) // span - 5)
        span *= 2
    return most


def kept_checkpoints(num_rounds: int, *, every_rounds: int, keep: int, keep_every: int) -> KeptCheckpoints:
    """The most checkpoints that exist until `num_rounds`: the newest `keep` and the one that is being written, and older ones as
    `surplus` in coordinator/checkpoints/thinning.py keeps them; with a `keep_every` of 0 none.
    """
    num_written = -(-num_rounds // every_rounds)
    whole = min(num_written, keep + 1)
    lasting = most_lasting(num_rounds // (every_rounds * keep_every)) if keep_every else 0
    return KeptCheckpoints(whole, min(num_written - min(num_written, keep), lasting))
