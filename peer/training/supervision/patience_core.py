"""How long a training process may leave a command unanswered before it counts as frozen. Pure."""

from __future__ import annotations

from typing import Final

PATIENCE_STEPS: Final = 20.0
LEAST_PATIENCE_S: Final = 20.0
MOST_PATIENCE_S: Final = 300.0
"""How long a command may go unanswered, in steps and in seconds. An evaluation may take as long as many steps."""

SECOND_LOOK_S: Final = 2.0
"""The last wait after that, in seconds: a daemon that was itself suspended may not have read the answer yet."""

LEAST_WORK_S: Final = 1.0
"""Seconds that a working process runs, or waits for a processor, between two looks. A hanging process does neither, and one that waits
for another rank hardly does.
"""


def patience_s(micro_batch: int, slowest_s: float) -> float:
    """How long a command may wait for its step boundary: many times the slowest recent step.

    Args:
        micro_batch: sequences at a time; 0 before a process that started paused has searched for it.
        slowest_s: the slowest recent step, in seconds; infinite before two steps.
    """
    return min(MOST_PATIENCE_S, max(LEAST_PATIENCE_S, PATIENCE_STEPS * slowest_s)) if micro_batch else MOST_PATIENCE_S
