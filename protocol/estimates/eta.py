"""How long a run still takes, told from how its latest rounds came. Pure: whose clock it is does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PACE_ROUNDS: Final = 10
"""Rounds that are looked back on: as many as make one slow round weigh little, and few enough to notice who came and left."""


@dataclass(frozen=True, slots=True)
class PacePoint:
    """The run's committed tokens, and when they were seen, in seconds of one clock."""

    total_tokens: int
    at_s: float


def time_left_s(points: Sequence[PacePoint], total_tokens: int, target_tokens: int) -> float | None:
    """Seconds until `target_tokens` at the pace of the latest of these points; None where two of them do not tell it."""
    if total_tokens >= target_tokens:
        return 0.0
    recent = points[-PACE_ROUNDS:]
    if len(recent) < 2:
        return None
    tokens = recent[-1].total_tokens - recent[0].total_tokens
    seconds = recent[-1].at_s - recent[0].at_s
    if tokens <= 0 or seconds <= 0:
        return None
    return (target_tokens - total_tokens) * seconds / tokens
