"""What a peer was doing when: the newest spans of its training and of its rounds, for a look at one round."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import trio

MOST_SPANS: Final = 4096
"""Kept of rounds, and as many of training: some hundred bytes each. A round of 64 members has some hundred, and a local step one, of
which a small model makes thousands a round.
"""

COMPUTE: Final = "compute"
"""A local step."""

EVALUATE: Final = "evaluate"
"""A held-out loss, which the training process measures between two steps."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took from `begin_s` to `end_s`, seconds of trio's clock.

    Attributes:
        name: COMPUTE, EVALUATE, "snapshot", "encode", "send", "reduce", "receive", "apply" or "adopt".
        unit: whose round it belongs to; empty for the first two.
        detail: with whom or of what, for people.
        round_index: of the round that it belongs to, 0 where that is not known.
        num_bytes: that were encoded, or went over the network; 0 where none did.
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
    """What is being moved: whoever moves it counts."""

    num_bytes: int = 0


Record = Callable[[Span], None]
"""Takes a span that is over; never blocks."""


def nowhere(span: Span) -> None:
    """Where nobody looks."""


class SpanRing:
    """The newest spans; older ones make room for them, those of rounds and those of training each for their own kind."""

    def __init__(self, most: int = MOST_SPANS) -> None:
        self._of_rounds: deque[Span] = deque(maxlen=most)
        self._of_training: deque[Span] = deque(maxlen=most)

    def record(self, span: Span) -> None:
        """One more."""
        (self._of_rounds if span.unit else self._of_training).append(span)

    def newest(self) -> list[Span]:
        """All that are kept, in the order in which they ended."""
        return sorted([*self._of_rounds, *self._of_training], key=lambda span: span.end_s)


@contextmanager
def spanned(record: Record, name: str, unit: str, detail: str = "", round_index: int = 0) -> Iterator[Moving]:
    """Record how long the block takes, and the bytes that it counts; one that fails is recorded, too."""
    begin_s, moving = trio.current_time(), Moving()
    try:
        yield moving
    finally:
        record(Span(name, unit, begin_s, trio.current_time(), detail, round_index, moving.num_bytes))
