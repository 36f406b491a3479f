"""The rounds of one stage as the round service sees them: what it wants of a trainer (averaging/network/seams/interfaces.py).

What lanes bring and what they go on from is in lane_shares.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import trio

from averaging.network.seams.interfaces import KeptPart, NoPart, Snapshot, TrainerProgress
from peer.pipeline.lane_shares import StageShares
from protocol.errors import ConfigError


class LaneView(Protocol):
    """What the rounds of a stage know of the lanes at this peer."""

    @property
    def num_lanes(self) -> int:
        """That are kept in the run, 0 where it is not known: of so many the next round is."""
        ...

    @property
    def is_in_lane(self) -> bool:
        """Whether a lane is served, whose share will come."""
        ...


def _never_restarted() -> int:
    return 0


class StageRounds:
    """The Trainer seam of one stage.

    Args:
        restarts: of the training process.
    """

    def __init__(self, shares: StageShares, lanes: LaneView, restarts: Callable[[], int] = _never_restarted) -> None:
        self.shares = shares
        self._lanes = lanes
        self._restarts = restarts

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        """Another state: what waits is not of it."""
        self.shares.loaded(anchor_N)

    async def snapshot(self) -> Snapshot:
        """The share that waits; of a lane that is still working it is waited for.

        Raises:
            NoPart: none will come.
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
        """A commit came: the lane that waits goes on from it."""
        self.shares.spend()

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        """The parameters of the newest commit. A lane goes back to its snapshots, and begins from the chain's state."""
        self.shares.anchor_moved(anchor_N)

    async def evaluate(self, anchor_N: torch.Tensor) -> float:
        """Nobody holds the whole model.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a held-out loss of one stage", "one of the whole model")

    async def evaluate_prose(self, anchor_N: torch.Tensor) -> float | None:
        """None: as `evaluate`."""
        return None

    def progress(self) -> TrainerProgress:
        """Counters as of now; tokens ready are those of the share that waits."""
        return self.shares.progress(self._lanes.num_lanes, self._restarts())
