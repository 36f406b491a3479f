"""What a peer was doing when: the newest spans of its training and of its rounds, for a look at one round."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import trio

MOST_SPANS: Final = 4096
"""Kept: some hundred bytes each. A round of 64 members has some hundred, and a local step one."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took from `begin_s` to `end_s`, seconds of trio's clock.

    Attributes:
        name: "compute" (a local step), "snapshot", "encode", "send", "reduce", "receive", "apply" or "adopt".
        unit: whose round it belongs to; empty for local steps.
        detail: with whom or of what, for people.
    """

    name: str
    unit: str
    begin_s: float
    end_s: float
    detail: str = ""


Record = Callable[[Span], None]
"""Takes a span that is over; never blocks."""


def nowhere(span: Span) -> None:
    """Where nobody looks."""


class SpanRing:
    """The newest spans; older ones make room for them."""

    def __init__(self, most: int = MOST_SPANS) -> None:
        self._spans: deque[Span] = deque(maxlen=most)

    def record(self, span: Span) -> None:
        """One more."""
        self._spans.append(span)

    def newest(self) -> list[Span]:
        """All that are kept, in the order in which they ended."""
        return list(self._spans)


@contextmanager
def spanned(record: Record, name: str, unit: str, detail: str = "") -> Iterator[None]:
    """Record how long the block takes; one that fails is recorded, too."""
    begin_s = trio.current_time()
    try:
        yield
    finally:
        record(Span(name, unit, begin_s, trio.current_time(), detail))
