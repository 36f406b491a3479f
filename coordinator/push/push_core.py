"""When to push a checkpoint, and what is known of it. Pure. Times are monotonic seconds unless they say otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

FIRST_AGAIN_S: Final = 15.0
LONGEST_AGAIN_S: Final = 3600.0
"""A push that failed is tried again after the first time, then after twice as long each time, up to the longest."""

SCORES_AGAIN_S: Final = 60.0
"""Parts of a task come one after another, and each push of scores is a version of its own on some hubs."""


@dataclass(frozen=True, slots=True)
class PushState:
    """The pushes of a host.

    Attributes:
        pushed: name of the newest checkpoint that was verified there, empty before the first; of round `index`, at `unix_s`.
        failures: since this process began; `in_a_row` since the last success.
        reason: why the last one failed, empty after a success.
        again_s: not to be tried before.
        scores: of the file of scores that was pushed last with that checkpoint, empty for none.
        scores_again_s: the next scores are not to be pushed before.
    """

    url: str
    pushed: str = ""
    index: int = 0
    unix_s: int = 0
    failures: int = 0
    in_a_row: int = 0
    reason: str = ""
    again_s: float = 0.0
    scores: str = ""
    scores_again_s: float = 0.0

    def is_due(self, newest: str, now_s: float) -> bool:
        """Whether to push the newest checkpoint now; `newest` is its name, empty if there is none."""
        return bool(newest) and newest != self.pushed and now_s >= self.again_s

    def scores_are_due(self, newest: str, scores: str, now_s: float) -> bool:
        """Whether to push the scores of the newest checkpoint, which is there. `scores` tells one file of scores from another."""
        is_new = bool(scores) and scores != self.scores and newest == self.pushed
        return is_new and now_s >= max(self.again_s, self.scores_again_s)

    def succeeded(self, name: str, index: int, unix_s: int, scores: str = "") -> PushState:
        """After a checkpoint was verified there, with these scores."""
        return replace(self.well(), pushed=name, index=index, unix_s=unix_s, scores=scores)

    def scored(self, scores: str, now_s: float) -> PushState:
        """After its scores were verified there."""
        return replace(self.well(), scores=scores, scores_again_s=now_s + SCORES_AGAIN_S)

    def well(self) -> PushState:
        """After a push that did not fail."""
        return replace(self, in_a_row=0, reason="", again_s=0.0)

    def failed(self, reason: str, now_s: float) -> PushState:
        """After a push failed."""
        wait_s = min(LONGEST_AGAIN_S, FIRST_AGAIN_S * 2.0 ** min(self.in_a_row, 30))
        return replace(
            self, failures=self.failures + 1, in_a_row=self.in_a_row + 1, reason=reason, again_s=now_s + wait_s
        )

    def as_json(self, now_s: float) -> Mapping[str, object]:
        """As /api/status shows it on the host's own page."""
        return {
            "url": self.url,
            "pushed": self.pushed,
            "index": self.index,
            "unix_s": self.unix_s,
            "failures": self.failures,
            "reason": self.reason,
            "again_in_s": round(max(0.0, self.again_s - now_s), 1) if self.reason else None,
        }
