"""The snapshots that a seat holds, and the one that is being written beside the passes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from peer.pipeline.stage.stage_snapshot import Written
from protocol.ids import PeerId
from protocol.pipeline.stage_machine import Point


def _set() -> trio.Event:
    event = trio.Event()
    event.set()
    return event


@dataclass
class HeldSnapshots:
    """Snapshots by their points.

    Attributes:
        own: of the seat's stage.
        copies: second copies, of the previous stage.
        copied_to: the neighbour that holds a copy of an own one.
    """

    own: dict[Point, bytes] = field(default_factory=dict)
    copies: dict[Point, bytes] = field(default_factory=dict)
    copied_to: dict[Point, PeerId] = field(default_factory=dict)
    _is_free: trio.Event = field(default_factory=_set)

    async def take(
        self,
        nursery: trio.Nursery,
        take: Callable[[], Awaitable[Written]],
        hold: Callable[[Written], Awaitable[None]],
    ) -> None:
        """Take a snapshot, and have it held by a task of the nursery. It waits until the last one is held: each takes memory until the
        neighbour has it.
        """
        await self._is_free.wait()
        written = await take()
        is_free = self._is_free = trio.Event()

        async def until_held() -> None:
            try:
                await hold(written)
            finally:
                is_free.set()

        nursery.start_soon(until_held)

    def forget_before(self, at: Point) -> None:
        """Every stage holds the snapshot of this point."""
        self._forget(lambda each: each < at)

    def forget_after(self, at: Point) -> None:
        """The lane goes back to this point."""
        self._forget(lambda each: each > at)

    def _forget(self, is_over: Callable[[Point], bool]) -> None:
        for kept in (self.own, self.copies, self.copied_to):
            for at in [at for at in kept if is_over(at)]:
                del kept[at]
