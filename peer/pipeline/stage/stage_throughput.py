"""What a stage could do here, were it never to wait for other stages: the tokens that it passed back, by the time that it computed.

A lane steps as fast as its slowest stage, so what stages do tells nothing of which one that is; what they could do does. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from protocol.pipeline.schedule import Pass

KEPT_STEPS: Final = 8


class StageThroughput:
    """Of one stage at one peer, over its last steps.

    Args:
        num_micro_batches: of a step; passes with higher numbers measure, and train nothing.
        step_tokens: of all of them.
    """

    def __init__(self, num_micro_batches: int, step_tokens: int) -> None:
        self._num_micro_batches = num_micro_batches
        self._tokens = step_tokens / num_micro_batches
        self.first_pass_s: float | None = None
        """Of computing until the end of the first pass, with what the stage was made of; None before."""

        self._first_s = 0.0
        self._kept = deque[tuple[float, int]](maxlen=KEPT_STEPS * (2 * num_micro_batches + 1))

    def worked(self, work: Pass | None, busy_s: float) -> None:
        """It computed for so long: a pass, or what comes at a step's end."""
        if self.first_pass_s is None:
            self._first_s += busy_s
            self.first_pass_s = self._first_s if work is not None else None
        if work is None or work.number < self._num_micro_batches:
            self._kept.append((busy_s, int(work is not None and work.is_backward)))

    @property
    def tokens_per_s(self) -> float:
        """0.0 before the first micro-batch was passed back."""
        busy_s, num_passed = (sum(part) for part in zip(*self._kept, strict=True)) if self._kept else (0.0, 0)
        return num_passed * self._tokens / busy_s if busy_s > 0.0 else 0.0
