"""Patience that is measured in our own turns: a loop that does not keep up cannot tell that somebody else is late."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from averaging.network.asyncio_thread import open_plain_nursery

TURN_S: Final = 0.1
"""Of patience that one look at the clock uses up, however late it comes: an answer that is there already is taken before the next."""


@asynccontextmanager
async def patient_for(seconds: float) -> AsyncIterator[trio.CancelScope]:
    """As `trio.move_on_after`, where time in which our own loop stood still counts as `TURN_S` at most. Who sets a deadline of the
    scope ends the block at that time instead.
    """
    with trio.CancelScope() as scope:
        async with open_plain_nursery() as nursery:
            nursery.start_soon(_wait_turns, scope, seconds)
            yield scope
            nursery.cancel_scope.cancel()


async def _wait_turns(scope: trio.CancelScope, seconds: float) -> None:
    for _ in range(math.ceil(seconds / TURN_S)):
        await trio.sleep(min(TURN_S, seconds))
        if scope.deadline < math.inf:
            return
    scope.cancel()
