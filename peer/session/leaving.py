"""Leaving a run: the departure, the last uploads, and how long the peer lingers for others.

A request to leave ends everything at once, except in rounds, where the peer first says goodbye.

A peer that moves to another part of the run, or trains on more cards from now on, also leaves, and comes back at once.

At the end of a run a peer stays while others still download from it; the host with its last checkpoint is one of them.

A peer that leaves with experts that no other peer holds first uploads their latest state to the host.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from protocol.ids import CommitId, UnitName


class Departure:
    """A request to leave. It ends the part of the peer that was entered last."""

    def __init__(self) -> None:
        self.comes_back = False
        """Whether the peer restarts at once with the state on its disk."""

        self._is_ordered = False
        self._scope: trio.CancelScope | None = None

    def ends(self) -> trio.CancelScope:
        """A scope for `with` that a request ends. Code after it still runs and cannot be ended by another request, so it needs a
        deadline of its own.
        """
        self._scope = trio.CancelScope()
        return self._scope

    def order(self) -> None:
        """Leave. Has no effect if no scope was entered."""
        self.comes_back, self._is_ordered = False, True
        self._end()

    def begin_anew(self) -> None:
        """Leave as after `order`, and come back. Ignored once `order` was given."""
        self.comes_back = not self._is_ordered
        self._end()

    def _end(self) -> None:
        if self._scope is not None:
            self._scope.cancel()


LINGER_S: Final = 30.0
"""How long a peer stays after the last commit, the last byte served or the host's return, while others may not have everything."""

MOST_LINGER_S: Final = 3600.0
"""Upper bound on lingering, however much is served. A volunteer's machine must be free again."""

SETTLE_DOWN_S: Final = 3.0
LOOK_EVERY_S: Final = 0.5


async def linger(does_everybody_have_all: Callable[[], Awaitable[bool]], signs: Callable[[], object]) -> None:
    """Stay until everybody has everything, or until nobody gave a sign for `LINGER_S`.

    Args:
        signs: changes with every sign that another still needs us, such as the bytes that this process has served.
    """
    most_s = trio.current_time() + MOST_LINGER_S
    with trio.move_on_after(LINGER_S) as staying:
        await trio.sleep(SETTLE_DOWN_S)
        seen = signs()
        while not await does_everybody_have_all():
            if signs() != seen:
                seen = signs()
                staying.deadline = min(most_s, trio.current_time() + LINGER_S)
            await trio.sleep(LOOK_EVERY_S)


HAND_OVER_WITHIN_S: Final = 6.0
"""The host checks every second and lacks one round or two. Stopping a container allows ten seconds for the whole departure."""

HANDED_OVER_POLL_S: Final = 0.1


async def hand_over(
    lone: Mapping[UnitName, CommitId],
    known_there: Callable[[UnitName], CommitId | None],
    report: Callable[[], Awaitable[object]],
) -> tuple[UnitName, ...]:
    """Report our heads to the host, and wait for a limited time until it has them.

    Args:
        lone: units that no other peer holds now, with our heads. Their rounds are over, so these heads are final.
        known_there: the host's head in a unit, None while it has not asked.
        report: sends a report to the host.

    Returns:
        The units that the host did not fetch in time. Their newest rounds are lost unless we come back.
    """

    def left() -> tuple[UnitName, ...]:
        return tuple(unit for unit, head in lone.items() if known_there(unit) != head)

    with trio.move_on_after(HAND_OVER_WITHIN_S):
        if left():
            await report()
        while left():
            await trio.sleep(HANDED_OVER_POLL_S)
    return left()
