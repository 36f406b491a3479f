"""Leaving with experts that nobody else holds: the host, which keeps them for whoever takes them up, gets what it has not got yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from protocol.ids import CommitId, UnitName

HAND_OVER_WITHIN_S: Final = 6.0
"""The host looks every second and lacks one round or two; who stops a container waits ten seconds for all of its leaving."""

HANDED_OVER_POLL_S: Final = 0.1


async def hand_over(
    lone: Mapping[UnitName, CommitId],
    known_there: Callable[[UnitName], CommitId | None],
    report: Callable[[], Awaitable[object]],
) -> tuple[UnitName, ...]:
    """Tell the host where we stand, and stay until it stands there, too, at most for a while.

    Args:
        lone: the units that nobody else holds now, with our heads; their rounds are over, so that these are the last ones.
        known_there: where the host stands in a unit as its own questions told, None while it has not asked.
        report: tells the host.

    Returns:
        The units that it did not take in time: what came after its last visit is lost unless we come back.
    """

    def left() -> tuple[UnitName, ...]:
        return tuple(unit for unit, head in lone.items() if known_there(unit) != head)

    with trio.move_on_after(HAND_OVER_WITHIN_S):
        if left():
            await report()
        while left():
            await trio.sleep(HANDED_OVER_POLL_S)
    return left()
