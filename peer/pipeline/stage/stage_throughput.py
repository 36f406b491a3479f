"""A stage's capacity here if it never had to wait for other stages: tokens that went backward, divided by compute time.

A lane steps as fast as its slowest stage, so the observed throughput does not show which stage is slowest. The capacity does.
Pure.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from protocol.pipeline.schedule import Pass

KEPT_STEPS: Final = 8


class StageThroughput:
    """Capacity of one stage at one peer, over its last steps.

    Args:
        num_micro_batches: of a step. Passes with higher numbers only measure.
        step_tokens: tokens of one step.
    """

    def __init__(self, num_micro_batches: int, step_tokens: int) -> None:
        self._num_micro_batches = num_micro_batches
        self._tokens = step_tokens / num_micro_batches
        self.first_pass_s: float | None = None
        """Compute time until the end of the first pass, including building the stage; None before that."""

        self._first_s = 0.0
        self._kept = deque[tuple[float, int]](maxlen=KEPT_STEPS * (2 * num_micro_batches + 1))

    def worked(self, work: Pass | None, busy_s: float) -> None:
        """The stage computed this long: a pass, or the end of a step."""
        if self.first_pass_s is None:
            self._first_s += busy_s
            self.first_pass_s = self._first_s if work is not None else None
        if work is None or work.number < self._num_micro_batches:
            self._kept.append((busy_s, int(work is not None and work.is_backward)))

    @property
    def tokens_per_s(self) -> float:
        """Tokens/s; 0.0 before the first micro-batch has gone backward."""
        busy_s, num_passed = (sum(part) for part in zip(*self._kept, strict=True)) if self._kept else (0.0, 0)
        return num_passed * self._tokens / busy_s if busy_s > 0.0 else 0.0
