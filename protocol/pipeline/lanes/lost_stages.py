"""A stage that nobody holds any more: the run pauses, and says so, until somebody takes it. Pure.

A model without one of its stages computes nothing. What the others trained since the last commit goes into its round, as far as their
lanes had snapshots of it, and then they wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

PAUSED_AFTER_S: Final = 10.0
"""Without a holder: who restarts is away for some seconds, and at a run's start not everybody has been heard."""


def empty_since(before: Mapping[int, float], num_holders: Sequence[int], now_s: float) -> dict[int, float]:
    """Since when each stage without a live holder has none, monotonic seconds.

    Args:
        num_holders: live ones of each stage, as far as is known here.
    """
    return {stage: before.get(stage, now_s) for stage, count in enumerate(num_holders) if not count}


def paused_because(empty: Mapping[int, float], now_s: float) -> str:
    """Why the run stands still, in one sentence; empty while each stage has a holder, or has been without one for a moment only."""
    lost = [stage for stage, since_s in sorted(empty.items()) if now_s - since_s >= PAUSED_AFTER_S]
    if not lost:
        return ""
    which = f"stage {lost[0]}" if len(lost) == 1 else f"stages {', '.join(map(str, lost))}"
    state = (
        "its newest state that a peer or the host has"
        if len(lost) == 1
        else "their newest states that peers or the host have"
    )
    return f"the run pauses: nobody who is there holds {which}; it goes on from {state} as soon as somebody takes what is missing"
