"""The snapshots that a seat holds, and the one that is being written beside the passes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from averaging.network.seams.interfaces import Offload
from peer.pipeline.stage.snapshot_bytes import SnapshotBytes
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

    Forgotten snapshots take memory until `free` or `keep_freeing` has freed it.
    """

    own: dict[Point, SnapshotBytes] = field(default_factory=dict)
    copies: dict[Point, SnapshotBytes] = field(default_factory=dict)
    copied_to: dict[Point, PeerId] = field(default_factory=dict)
    _over: list[SnapshotBytes] = field(default_factory=list)
    _is_over: trio.Event = field(default_factory=trio.Event)
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

    def forget_all(self) -> None:
        """The seat is over."""
        self._forget(lambda each: True)

    async def keep_freeing(self, offload: Offload) -> None:
        """Free what is forgotten, until cancelled."""
        while True:
            await self._is_over.wait()
            self._is_over = trio.Event()
            await self.free(offload)

    async def free(self, offload: Offload) -> None:
        """Free what was forgotten, in a thread, since that takes long for a large snapshot."""
        over, self._over = self._over, []
        await offload.run(over.clear)

    def _forget(self, is_over: Callable[[Point], bool]) -> None:
        for kept in (self.own, self.copies):
            self._over += [kept.pop(at) for at in [at for at in kept if is_over(at)]]
        for at in [at for at in self.copied_to if is_over(at)]:
            del self.copied_to[at]
        self._is_over.set()
