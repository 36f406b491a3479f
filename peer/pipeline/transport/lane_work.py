"""The context of a seat in a lane: the network, the rounds, and the computation of its stage in this process or another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from averaging.network.seams.interfaces import Offload
from peer.pipeline.stage.lane_compute import LaneShape
from peer.pipeline.stage.snapshot_bytes import SnapshotBytes
from peer.pipeline.stage.stage_snapshot import Written
from peer.pipeline.transport.lane_network import LaneNetwork
from protocol.ids import PeerId
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import LaneConfig, Point
from protocol.tensors.stage_schema import StageMap

PASS_COST_S: Final = 0.01
"""Virtual time that a pass, a step or a snapshot costs."""


@dataclass(frozen=True, slots=True)
class LaneShare:
    """One stage's part of a lane's contribution to a round. The same share may be contributed twice, and counts once.

    Attributes:
        theta_N: (N,) the stage's parameters after its inner steps, in schema order.
        served_by: the peer whose seat it was, for a share that its neighbour contributes.
    """

    lane: int
    stage: int
    round: int
    tokens: int
    theta_N: torch.Tensor
    served_by: PeerId | None = None


class StageWork(Protocol):
    """The computation of one seat, one call after another, in any process. After a PotluckError the seat cannot continue, except
    in `arrived` and `restore`, which check data from other peers.
    """

    async def open(self) -> None:
        """Make the stage with the run's newest parameters. Must be the first call."""
        ...

    async def arrived(self, message: bytes, epoch: int, at: Point, work: Pass) -> None:
        """Keep the input of this pass until the pass runs.

        Raises:
            RemoteProtocolError: the input is not valid. Nothing was computed.
        """
        ...

    async def run_pass(self, epoch: int, at: Point, work: Pass) -> bytes | None:
        """Compute the pass from its input. Returns the message for the next stage in this direction, if there is one."""
        ...

    async def square(self) -> float:
        """Squared norm of this stage's gradient."""
        ...

    async def take_step(self, at: Point, whole_square: float) -> bool:
        """Take the inner step. Returns whether its tokens count."""
        ...

    async def snapshot(self) -> Written:
        """Copy the complete state on which the next step depends. The next pass does not wait until the copy is written."""
        ...

    async def restore(self, snapshot: SnapshotBytes) -> None:
        """Continue from a snapshot. Discards the present state.

        Raises:
            PotluckError: it is not a snapshot of this stage.
        """
        ...

    async def theta(self) -> torch.Tensor:
        """(N,), a copy."""
        ...

    async def adopt(self, anchor_N: torch.Tensor) -> None:
        """Begin the next round from these parameters."""
        ...


Confirm = Callable[[], Awaitable[str]]
"""Asks the keeper whether a share was its giver's to give. Returns why not, or an empty string. The share then belongs to the
asker.
"""


async def _no_gifts(_giver: PeerId, _share: LaneShare, _confirm: Confirm) -> str:
    return "this peer contributes no shares of others"


def _ignore_round(_round: int) -> None:
    """Ignore the round."""


@dataclass(frozen=True)
class LaneContext:
    """The context that all lanes of a peer share.

    Attributes:
        work_of: (lane, stage) to its computation.
        average: contributes a share to its round, and returns the stage's parameters for the next one, (N,).
        begins: called with the round with which a lane begins here.
        take_gift: takes (giver, a stage's share of a dissolved lane, a check whether it was the giver's to give). Returns why
            the share is not contributed here; empty if it is.
    """

    network: LaneNetwork
    offload: Offload
    form: LaneShape
    work_of: Callable[[int, int], StageWork]
    average: Callable[[LaneShare], Awaitable[torch.Tensor]]
    take_gift: Callable[[PeerId, LaneShare, Confirm], Awaitable[str]] = _no_gifts
    begins: Callable[[int], None] = _ignore_round

    @property
    def config(self) -> LaneConfig:
        """The lane settings."""
        return self.form.config

    @property
    def stages(self) -> StageMap:
        """The stages of the model."""
        return self.form.stages
