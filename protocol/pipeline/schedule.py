"""In which order a stage runs the forward and backward passes of a step's micro-batches.

GPipe (1811.06965, figure 2c) runs all forward passes first. 1F1B (PipeDream-Flush, 2006.09503, figure 2) goes backward as soon as
it can, and keeps at most one micro-batch for each stage after it. Both go backward in the order of the micro-batches' numbers, so
that gradients are summed in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from protocol.errors import ConfigError, LocalProtocolError

ScheduleName = Literal["gpipe", "1f1b"]
SCHEDULES: Final[tuple[ScheduleName, ...]] = ("gpipe", "1f1b")


@dataclass(frozen=True, slots=True)
class Pass:
    """One micro-batch, by its number, through one stage in one direction."""

    number: int
    is_backward: bool


def passes(schedule: str, stage: int, num_stages: int, num_micro_batches: int) -> tuple[Pass, ...]:
    """All passes of one step at a stage, in order. In 1F1B the last stage takes a micro-batch backward right after its loss.

    Raises:
        ConfigError: no such schedule.
        LocalProtocolError: numbers out of range.
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
    """Largest number of micro-batches between their forward and backward pass at a stage.

    Raises:
        ConfigError: no such schedule.
    """
    if schedule == "gpipe":
        return num_micro_batches
    if schedule == "1f1b":
        return min(num_micro_batches, num_stages - stage)
    raise ConfigError(f"schedule {schedule!r}", f"one of {', '.join(SCHEDULES)}")
