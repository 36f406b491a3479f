"""In which order a stage takes the micro-batches of a step, forward and backward.

GPipe (1811.06965, figure 2c) brings all of them forward first; 1F1B (PipeDream-Flush, 2006.09503, figure 2) begins to go backward as
soon as it can, and keeps no more than one micro-batch for each stage behind it. Both go backward in the order of the micro-batches'
numbers, so that gradients are summed in one order, whichever is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from protocol.errors import ConfigError, LocalProtocolError

ScheduleName = Literal["gpipe", "1f1b"]
SCHEDULES: Final[tuple[ScheduleName, ...]] = ("gpipe", "1f1b")


@dataclass(frozen=True, slots=True)
class Pass:
    """One micro-batch, by its number, through one stage, one way."""

    number: int
    is_backward: bool


def passes(schedule: str, stage: int, num_stages: int, num_micro_batches: int) -> tuple[Pass, ...]:
    """All passes of one step at a stage, in order. The last stage goes backward with a micro-batch right after its loss in 1F1B.

    Raises:
        ConfigError: no such schedule.
        LocalProtocolError: numbers that are none.
    """
    if not 0 <= stage < num_stages or num_micro_batches < 1:
        raise LocalProtocolError(
            f"stage {stage} of {num_stages}, {num_micro_batches} micro-batches", "a stage, and at least one"
        )
    ahead = min(most_in_flight(schedule, stage, num_stages, num_micro_batches), num_micro_batches)
    order = [Pass(number, False) for number in range(ahead)]
    for number in range(num_micro_batches):
        order.append(Pass(number, True))
        if ahead + number < num_micro_batches:
            order.append(Pass(ahead + number, False))
    return tuple(order)


def most_in_flight(schedule: str, stage: int, num_stages: int, num_micro_batches: int) -> int:
    """Micro-batches that have gone forward and not yet backward at a stage, at most.

    Raises:
        ConfigError: no such schedule.
    """
    if schedule == "gpipe":
        return num_micro_batches
    if schedule == "1f1b":
        return min(num_micro_batches, num_stages - stage)
    raise ConfigError(f"schedule {schedule!r}", f"one of {', '.join(SCHEDULES)}")
