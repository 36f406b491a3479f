"""When a stage is done: the run's tokens are committed, and it has its last round, or will not have it any more. Pure.

All stages have the first one's rounds. One that lost its work of a round is behind, and its last round may never come: those who would
contribute to it are done, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LAST_ROUND_WITHIN_S: Final = 20.0
"""For so long a stage that is a round behind the first one waits for its last round, once the run's tokens are committed."""


SPINE_TOLD_WITHIN_S: Final = 5.0
"""Of a commit that members of our lane go on from already."""


def is_after_the_end(
    *, own_tokens: int, total_tokens: int, spine: tuple[int, int] | None, round_: int, waited_s: float
) -> bool | None:
    """Whether the run had all its tokens before this round of lanes; None while that is to be heard.

    The last parameters are measured in a step that belongs to no round, and a stage with one replica would commit what it was given
    with it before it hears that the run is over. The first stage's commit that the lane goes on from is there; we hear of it soon.

    Args:
        own_tokens: of this stage's newest commit.
        total_tokens: of the run.
        spine: index and tokens of the first stage's newest commit that is known here, None where none is.
    """
    if own_tokens < total_tokens:
        return False
    if (spine is None or spine[0] < round_) and waited_s < SPINE_TOLD_WITHIN_S:
        return None
    return spine is not None and spine[1] >= total_tokens


@dataclass(frozen=True, slots=True)
class Ending:
    """Since when the run's tokens are committed, as far as is known here, monotonic seconds; None while they are not."""

    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class StageEnding:
    """What came of a look: whether the stage is done, and what of it is missing, in words; empty where nothing is."""

    state: Ending
    is_done: bool
    missing: str = ""


def decide(state: Ending, *, is_run_over: bool, has_last_round: bool, now_s: float) -> StageEnding:
    """Whether there is anything left to wait for.

    Args:
        is_run_over: the first stage's commits have all tokens of the run.
        has_last_round: no round of the first stage's is missing here.
    """
    if not is_run_over:
        return StageEnding(Ending(), is_done=False)
    if has_last_round:
        return StageEnding(state, is_done=True)
    since_s = now_s if state.since_s is None else state.since_s
    if now_s - since_s <= LAST_ROUND_WITHIN_S:
        return StageEnding(Ending(since_s), is_done=False)
    missing = f"the last round of this stage did not come within {LAST_ROUND_WITHIN_S:g} s of the run's end: it stays a round behind"
    return StageEnding(Ending(since_s), is_done=True, missing=missing)
