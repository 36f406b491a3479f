"""A peer's timeline: the newest spans of its training and of its rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import trio

MOST_SPANS: Final = 4096
"""The most spans kept of rounds, and of training. A round of 64 members has some hundred; each local step has one, and a small
model makes thousands of steps a round.
"""

COMPUTE: Final = "compute"
"""A local step."""

EVALUATE: Final = "evaluate"
"""A held-out loss, which the training process measures between two steps."""


@dataclass(frozen=True, slots=True)
class Span:
    """Work that lasted from `begin_s` to `end_s`, seconds of trio's clock.

    Attributes:
        name: COMPUTE, EVALUATE, "snapshot", "encode", "send", "reduce", "receive", "apply" or "adopt".
        unit: the unit of its round; empty for COMPUTE and EVALUATE.
        detail: the other peer, or what was worked on, for people.
        round_index: its round, 0 if that is not known.
        num_bytes: bytes that were encoded or went over the network; else 0.
    """

    name: str
    unit: str
    begin_s: float
    end_s: float
    detail: str = ""
    round_index: int = 0
    num_bytes: int = 0


@dataclass(slots=True)
class Moving:
    """Counts the bytes that are moved during a span."""

    num_bytes: int = 0


Record = Callable[[Span], None]
"""Takes a span that has ended; never blocks."""


def nowhere(span: Span) -> None:
    """Records nothing."""


class SpanRing:
    """The newest spans. Those of rounds and those of training are limited separately."""

    def __init__(self, most: int = MOST_SPANS) -> None:
        self._of_rounds: deque[Span] = deque(maxlen=most)
        self._of_training: deque[Span] = deque(maxlen=most)

    def record(self, span: Span) -> None:
        """Add a span."""
        (self._of_rounds if span.unit else self._of_training).append(span)

    def newest(self) -> list[Span]:
        """All spans that are kept, in the order in which they ended."""
        return sorted([*self._of_rounds, *self._of_training], key=lambda span: span.end_s)


@contextmanager
def spanned(record: Record, name: str, unit: str, detail: str = "", round_index: int = 0) -> Iterator[Moving]:
    """Record how long the block takes, and the bytes that it counts. A block that fails is recorded, too."""
    begin_s, moving = trio.current_time(), Moving()
    try:
        yield moving
    finally:
        record(Span(name, unit, begin_s, trio.current_time(), detail, round_index, moving.num_bytes))
