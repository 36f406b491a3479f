"""Leaving a run: the departure, what is handed over, and how long the peer lingers for others.

How a running peer is asked to leave: everything ends at once, except while it takes part in rounds, where it first says goodbye.

A peer that takes up another part of the run leaves as well, and comes back at once.

The end of a run: how long a peer stays for those who still take what it has, the host with its last checkpoint among them.

Leaving with experts that nobody else holds: the host, which keeps them for whoever takes them up, gets what it has not got yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from protocol.ids import CommitId, UnitName


class Departure:
    """One request to leave, which ends the part of the peer that was entered last."""

    def __init__(self) -> None:
        self.comes_back = False
        """Whether the peer is to begin anew, with what is on its disk then."""

        self._scope: trio.CancelScope | None = None

    def ends(self) -> trio.CancelScope:
        """For `with`: the part that a request ends from now on. What comes after it still runs, and no further request ends that: it
        has to be over within a time of its own.
        """
        self._scope = trio.CancelScope()
        return self._scope

    def order(self) -> None:
        """Leave. Without effect where nothing was entered."""
        self.comes_back = False
        self._end()

    def begin_anew(self) -> None:
        """Leave as after `order`, and come back; not any more once `order` was given."""
        self.comes_back = True
        self._end()

    def _end(self) -> None:
        if self._scope is not None:
            self._scope.cancel()


LINGER_S: Final = 30.0
"""How long a peer stays after the last commit, or after the last byte that anybody took of it, where not everybody is known to have
all.
"""

MOST_LINGER_S: Final = 3600.0
"""However much is taken: nobody keeps a volunteer for good."""

SETTLE_DOWN_S: Final = 3.0
LOOK_EVERY_S: Final = 0.5


async def linger(does_everybody_have_all: Callable[[], Awaitable[bool]], bytes_given: Callable[[], int]) -> None:
    """Stay until that is so, or until nobody has taken anything for `LINGER_S`.

    Args:
        bytes_given: of results and states, since this process began: while it grows somebody still needs us.
    """
    most_s = trio.current_time() + MOST_LINGER_S
    with trio.move_on_after(LINGER_S) as staying:
        await trio.sleep(SETTLE_DOWN_S)
        given = bytes_given()
        while not await does_everybody_have_all():
            if bytes_given() > given:
                given = bytes_given()
                staying.deadline = min(most_s, trio.current_time() + LINGER_S)
            await trio.sleep(LOOK_EVERY_S)


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
