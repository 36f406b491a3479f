"""When a stage is done: the run's tokens are committed, and it has its last round, or will not have it any more. Pure.

All stages have the first one's rounds. One that lost its work of a round is behind, and its last round may never come: those who would
contribute to it are done, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LAST_ROUND_WITHIN_S: Final = 20.0
"""For so long a stage that is a round behind the first one waits for its last round, once the run's tokens are committed."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Since when the run's tokens are committed, as far as is known here, monotonic seconds; None while they are not."""

    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What came of a look: whether the stage is done, and what of it is missing, in words; empty where nothing is."""

    state: Ending
    is_done: bool
    missing: str = ""


def look(state: Ending, *, is_run_over: bool, has_last_round: bool, now_s: float) -> Look:
    """Whether there is anything left to wait for.

    Args:
        is_run_over: the first stage's commits have all tokens of the run.
        has_last_round: no round of the first stage's is missing here.
    """
    if not is_run_over:
        return Look(Ending(), is_done=False)
    if has_last_round:
        return Look(state, is_done=True)
    since_s = now_s if state.since_s is None else state.since_s
    if now_s - since_s <= LAST_ROUND_WITHIN_S:
        return Look(Ending(since_s), is_done=False)
    missing = f"the last round of this stage did not come within {LAST_ROUND_WITHIN_S:g} s of the run's end: it stays a round behind"
    return Look(Ending(since_s), is_done=True, missing=missing)
