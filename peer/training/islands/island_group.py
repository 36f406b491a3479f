"""The islands of one peer: those that are there, those that are left out, and the one that is asked alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import trio

from peer.training.islands.island import Island
from peer.training.islands.sums_core import names_of
from peer.training.plan.card_state import CardState
from peer.training.worker_channel import ProfileOrder, Reply
from peer.training.worker_errors import DoesNotFit

T = TypeVar("T")


class IslandGroup:
    """The islands in their order. `names` are for people."""

    def __init__(self, islands: Sequence[Island]) -> None:
        self.all = tuple(islands)
        self.names = names_of([island.device for island in islands])
        self.joining: trio.Nursery | None = None
        """For what goes on beside commands, while `supervise` runs."""

        for island in islands:
            island.may_leave = lambda: len(self.active) > 1

    @property
    def active(self) -> list[Island]:
        """Those that are not left out."""
        return [island for island in self.all if not island.left_out]

    async def ready(self) -> list[Island]:
        """The islands that obey commands now; if there is none, wait for the first."""
        while not (ready := [island for island in self.active if island.is_ready]):
            async with trio.open_nursery() as nursery:

                async def wait_for(island: Island, found: trio.CancelScope) -> None:
                    await island.until_ready()
                    found.cancel()

                for island in self.active:
                    nursery.start_soon(wait_for, island, nursery.cancel_scope)
        return ready

    async def profile(self, order: ProfileOrder) -> Reply | None:
        """Have the first island that is there record its next steps."""
        return await (await self.ready())[0].profile(order)

    def leave_behind(self, ready: Collection[Island], units: Collection[int], schedule_tokens: int) -> None:
        """All islands but these load the anchors of these units once they are back, also those that are left out."""
        for island in self.all:
            if island not in ready:
                island.fall_behind(units, schedule_tokens)

    async def each(self, act: Callable[[Island], Awaitable[None]]) -> None:
        """Do this with all islands, side by side. Those that are left out note it for later."""
        await side_by_side([partial(act, island) for island in self.all])

    async def on_one(self, measure: Callable[[Island], Awaitable[T]]) -> T:
        """The measure of the island that is missed the least; of another one if its card has no memory for it."""
        ready = await self.ready()
        ready.sort(key=lambda each: (bool(each.paused_because), each.is_busy, -each.progress().tokens_per_s))
        for island in ready[:-1]:
            try:
                return await measure(island)
            except DoesNotFit:
                continue
        return await measure(ready[-1])

    def cards(self) -> tuple[CardState, ...]:
        """Each island's card, also of those that are left out."""
        return tuple(
            replace(card, world=world, left_out=card.left_out or island.left_out)
            for world, island in enumerate(self.all)
            for card in island.cards
        )

    async def supervise(self) -> None:
        """Keep all islands alive until cancelled."""
        async with trio.open_nursery() as self.joining:
            for island in self.all:
                self.joining.start_soon(island.supervise)

    def close(self) -> None:
        """Free the shared memory."""
        for island in self.all:
            island.close()


async def side_by_side(actions: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Do all of these at once; return when they are done."""
    async with trio.open_nursery() as nursery:
        for action in actions:
            nursery.start_soon(action)
