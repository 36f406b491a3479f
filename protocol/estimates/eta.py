"""How long a run still takes, from the times of its latest rounds. Pure: any clock will do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ETA_ROUNDS: Final = 10
"""Rounds to look back on: enough that one slow round weighs little, and few enough to notice peers that came and left."""


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """The run's committed tokens, and when they were seen, in seconds of one clock."""

    total_tokens: int
    at_s: float


def time_left_s(points: Sequence[ProgressPoint], total_tokens: int, target_tokens: int) -> float | None:
    """Seconds until `target_tokens` at the rate of the latest of these points; None where there are fewer than two."""
    if total_tokens >= target_tokens:
        return 0.0
    recent = points[-ETA_ROUNDS:]
    if len(recent) < 2:
        return None
    tokens = recent[-1].total_tokens - recent[0].total_tokens
    seconds = recent[-1].at_s - recent[0].at_s
    if tokens <= 0 or seconds <= 0:
        return None
    return (target_tokens - total_tokens) * seconds / tokens
