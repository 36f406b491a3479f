"""A unit's head that moves when the test says so, and who waits for it."""

from __future__ import annotations

import torch
import trio

from averaging.state.state import UnitState
from protocol.rounds.lineage.chain_link import ChainLink


class StandingChain:
    """A chain as far as its newest commit; its state has two values, all one."""

    def __init__(self, link: ChainLink) -> None:
        self.stand_at(link)

    def stand_at(self, link: ChainLink) -> None:
        """This commit is the newest."""
        self.head = link
        self.state = UnitState(link.unit, link.commit, link.index, link.total_tokens, torch.ones(2), torch.zeros(2))


class MovingHead:
    """A unit's service as far as its head."""

    def __init__(self, link: ChainLink) -> None:
        self.chain = StandingChain(link)
        self._changed = trio.Event()

    def move(self, link: ChainLink) -> None:
        """The head is this commit now."""
        self.chain.stand_at(link)
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def wait_changed(self) -> None:
        """Until the head moves."""
        await self._changed.wait()
