"""How long a training process may leave a command unanswered before it counts as frozen. Pure."""

from __future__ import annotations

from typing import Final

PATIENCE_STEPS: Final = 20.0
LEAST_PATIENCE_S: Final = 20.0
MOST_PATIENCE_S: Final = 300.0
SECOND_LOOK_S: Final = 2.0
"""How long a command may go unanswered, in steps and in seconds. An evaluation may take as long as many steps."""

LEAST_WORK_S: Final = 1.0
"""Time between two looks in which a process that works ran, or waited for a processor. A hanging one does neither, and one that waits
for another rank hardly does.
"""


def patience_s(micro_batch: int, slowest_s: float) -> float:
    """How long a command may wait for its step boundary: many times the slowest recent step.

    Args:
        micro_batch: sequences at a time; 0 before a process that started paused has searched for it.
        slowest_s: infinite before two steps.
    """
    return min(MOST_PATIENCE_S, max(LEAST_PATIENCE_S, PATIENCE_STEPS * slowest_s)) if micro_batch else MOST_PATIENCE_S
