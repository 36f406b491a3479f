"""A timeout that excludes our own delays: an event loop that does not keep up cannot tell that another peer is late."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from protocol.errors import TransportError

TURN_S: Final = 0.1
"""Most time that one turn of the loop counts for, however late it comes: an answer that is there is taken before the next turn."""


@contextmanager
def patient_for(seconds: float, nursery: trio.Nursery, until_s: float) -> Iterator[trio.CancelScope]:
    """As `trio.move_on_after(seconds)`, but a delay of our own loop counts as `TURN_S` at most; ends at `until_s` in any case.

    If the block sets the scope's deadline, that deadline counts instead.

    Args:
        seconds: the time limit without our own delays.
        nursery: runs the counting task, outlives the block, and ends the wait if it is cancelled. It is the caller's nursery,
            because errors from one of our own would arrive as a group.
        until_s: the latest end, by trio's clock.

    Raises:
        TransportError: the nursery has closed.
    """
    done = trio.Event()
    try:
        with trio.CancelScope() as scope:
            try:
                nursery.start_soon(_wait_turns, scope, done, seconds, until_s)
            except RuntimeError:  # trio raises this if the nursery has closed
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
