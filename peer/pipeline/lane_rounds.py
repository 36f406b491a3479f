"""Adapts the lanes of one stage to the round service, through its Trainer interface (averaging/network/seams/interfaces.py).

lane_shares.py holds the shares that lanes contribute and the parameters they continue from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import trio

from averaging.network.seams.interfaces import HeldoutLosses, KeptPart, NoPart, ReadAnchors, Snapshot, TrainerProgress
from peer.pipeline.lane_shares import StageShares
from protocol.errors import ConfigError


class LaneView(Protocol):
    """The lanes at this peer, as the round service needs to know them."""

    @property
    def num_lanes(self) -> int:
        """Number of lanes in the run, 0 if unknown. The next round expects this many shares."""
        ...

    @property
    def is_in_lane(self) -> bool:
        """Whether this peer serves a lane whose share is still to come."""
        ...


def _never_restarted() -> int:
    return 0


class StageRounds:
    """The Trainer interface of one stage.

    Args:
        restarts: number of restarts of the training process.
    """

    def __init__(self, shares: StageShares, lanes: LaneView, restarts: Callable[[], int] = _never_restarted) -> None:
        self.shares = shares
        self._lanes = lanes
        self._restarts = restarts

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        """Start from another state. Discards the waiting share, which belongs to the old one."""
        self.shares.loaded(anchor_N)

    async def snapshot(self) -> Snapshot:
        """Return the waiting share. Waits for it while a lane is still working.

        Raises:
            NoPart: no share will come.
        """
        while not self.shares.is_waiting:
            if not self._lanes.is_in_lane:
                if self.shares.brought:
                    break
                raise NoPart("a spare, which serves no lane and has nothing of this round", "nothing more of it")
            with trio.move_on_after(1.0):
                await self.shares.wait_changed()
        return self.shares.snapshot()

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        """A commit arrived: the waiting lane continues from it."""
        self.shares.spend()

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        """Set the parameters of the newest commit. A running lane restores its own snapshots; a new lane begins from these
        parameters.
        """
        self.shares.anchor_moved(anchor_N)

    async def evaluate(self, read: ReadAnchors) -> HeldoutLosses:
        """Not available: no peer holds the whole model.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a held-out loss of one stage", "one of the whole model")

    def progress(self) -> TrainerProgress:
        """Current counters. The ready tokens are those of the waiting share."""
        return self.shares.progress(self._lanes.num_lanes, self._restarts())
