"""How long a run still takes and how fast it is, from the times at which its rounds were seen. Pure: any clock will do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ETA_ROUNDS: Final = 10
"""Rounds to look back on: enough that one slow round weighs little, and few enough to notice peers that came and left."""


BURST_S: Final = 3.0
"""Rounds that are seen within this time may have been made long before, such as while their observer was away."""

SPEED_OVER_S: Final = 30.0
"""Speed is measured over at least this time where rounds come faster."""


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """The run's committed tokens, and when they were seen, in seconds of one clock."""

    total_tokens: int
    at_s: float


def settled_points(points: Sequence[ProgressPoint]) -> list[ProgressPoint]:
    """The first point, then the last one of each BURST_S: of rounds that were seen at once only the last one tells how long they
    took together.
    """
    settled, began_s = list(points[:1]), 0.0
    for place, point in enumerate(points[1:]):
        if place and point.at_s - began_s < BURST_S:
            settled[-1] = point
        else:
            settled.append(point)
            began_s = point.at_s
    return settled


def speeds(points: Sequence[ProgressPoint]) -> list[tuple[int, float]]:
    """(total tokens, tokens per second) after each settled point but the first."""
    settled, begin, found = settled_points(points), 0, list[tuple[int, float]]()
    for place in range(1, len(settled)):
        end = settled[place]
        while begin + 1 < place and end.at_s - settled[begin + 1].at_s >= SPEED_OVER_S:
            begin += 1
        took_s = end.at_s - settled[begin].at_s
        if took_s >= BURST_S:
            found.append((end.total_tokens, (end.total_tokens - settled[begin].total_tokens) / took_s))
    return found


def time_left_s(points: Sequence[ProgressPoint], total_tokens: int, target_tokens: int) -> float | None:
    """Seconds until `target_tokens` at the rate of the latest of these points; None where they do not tell it yet."""
    if total_tokens >= target_tokens:
        return 0.0
    recent = settled_points(points)[-ETA_ROUNDS:]
    if len(recent) < 2:
        return None
    tokens = recent[-1].total_tokens - recent[0].total_tokens
    seconds = recent[-1].at_s - recent[0].at_s
    if tokens <= 0 or seconds < BURST_S:
        return None
    return (target_tokens - total_tokens) * seconds / tokens
