"""Turns of peers that ask for parts of a state: a few are served at a time, in the order of their coming.

Served all at once, each would get so little of the line that all would give up. A slow asker loses its turn after a while and goes
on beside the others, so that it holds up nobody.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import inf
from typing import Final

import trio

from protocol.ids import PeerId

AT_ONCE: Final = 4
"""Askers that are served at a time. One alone would leave the line idle between two stripes."""

MOST_WAITING: Final = 4
"""Askers that wait. More are sent away, if they understand that: they get the stripe sooner elsewhere."""

EACH: Final = 2
"""Requests of one asker at a time; it makes no more, unless it wants all turns for itself."""

HOLDS_S: Final = 5.0
"""The longest time that an asker keeps others waiting."""


class Turns:
    """The turns of one unit's askers."""

    def __init__(self) -> None:
        self._until_s: list[float] = []
        self._of: Counter[PeerId] = Counter()
        """Open requests of each asker."""

        self._in_line: Counter[PeerId] = Counter()
        """Those of them that wait for a turn or have one: at most EACH."""

        self._waiting: deque[object] = deque()
        self._changed = trio.Event()

    def has_none_for(self, asker: PeerId) -> bool:
        """Whether one more request of this peer would wait for long, or take others' turns."""
        return len(self._waiting) >= MOST_WAITING or self._of[asker] >= EACH

    @asynccontextmanager
    async def turn(self, asker: PeerId) -> AsyncIterator[None]:
        """A block that begins when its turn has come. Requests of one asker beyond EACH wait for its own earlier ones first: whoever
        makes many takes no more turns than others do.
        """
        with _counted(self._of, asker):
            while self._in_line[asker] >= EACH:
                await self._changed.wait()
            try:
                with _counted(self._in_line, asker):
                    async with self._in_turn():
                        yield
            finally:
                self._notify()

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        mine = object()
        self._waiting.append(mine)
        try:
            while self._waiting[0] is not mine or self._next_free_s() > trio.current_time():
                with trio.move_on_at(self._next_free_s() if self._waiting[0] is mine else inf):
                    await self._changed.wait()
        finally:
            self._waiting.remove(mine)
            self._notify()
        until_s = trio.current_time() + HOLDS_S
        self._until_s.append(until_s)
        try:
            yield
        finally:
            self._until_s.remove(until_s)
            self._notify()

    def _next_free_s(self) -> float:
        """When the next turn is free."""
        if len(self._until_s) < AT_ONCE:
            return -inf
        return sorted(self._until_s)[-AT_ONCE]

    def _notify(self) -> None:
        event, self._changed = self._changed, trio.Event()
        event.set()


@contextmanager
def _counted(counter: Counter[PeerId], asker: PeerId) -> Iterator[None]:
    counter[asker] += 1
    try:
        yield
    finally:
        counter[asker] -= 1
        if not counter[asker]:
            del counter[asker]
