"""Patience that is measured in our own turns: a loop that does not keep up cannot tell that somebody else is late."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from protocol.errors import TransportError

TURN_S: Final = 0.1
"""Of patience that one look at the clock uses up, however late it comes: an answer that is there already is taken before the next."""


@contextmanager
def patient_for(seconds: float, nursery: trio.Nursery, until_s: float) -> Iterator[trio.CancelScope]:
    """As `trio.move_on_after`, where time in which our own loop stood still counts as `TURN_S` at most, and as `trio.move_on_at` of
    `until_s` whatever it did. Who sets a deadline of the scope ends the block at that time instead. `nursery` outlives the block; what
    counts in it ends a turn after the block at the latest. It is no nursery of our own, whose errors and cancellations would leave as
    a group. Where it is being cancelled nobody counts any more, and patience ends.

    Raises:
        TransportError: the nursery has closed.
    """
    done = trio.Event()
    try:
        with trio.CancelScope() as scope:
            try:
                nursery.start_soon(_wait_turns, scope, done, seconds, until_s)
            except RuntimeError:  # trio's word for a nursery that has closed
                raise TransportError("a network that has closed", "an open one", "nothing is sent any more") from None
            yield scope
    finally:
        done.set()


async def _wait_turns(scope: trio.CancelScope, done: trio.Event, seconds: float, until_s: float) -> None:
    try:
        for _ in range(math.ceil(seconds / TURN_S)):
            if trio.current_time() >= until_s:
                break
            with trio.move_on_after(min(TURN_S, seconds)):
                await done.wait()
            if done.is_set() or scope.deadline < math.inf:
                return
    except trio.Cancelled:
        if scope.deadline == math.inf:
            scope.cancel()
        raise
    scope.cancel()
