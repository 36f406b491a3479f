"""What a seat in a lane works with: the network, the rounds, and what computes its stage, in this process or in another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from averaging.network.seams.interfaces import Offload
from peer.pipeline.stage.lane_compute import LaneShape
from peer.pipeline.transport.lane_network import LaneNetwork
from protocol.ids import PeerId
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import LaneConfig, Point
from protocol.tensors.stage_schema import StageMap

PASS_COST_S: Final = 0.01
"""What a pass, a step or a snapshot costs in virtual time."""


@dataclass(frozen=True, slots=True)
class LaneShare:
    """One stage's part of what a lane brings into a round; the same share may be brought twice, and counts once.

    Attributes:
        theta_N: (N,) the stage's parameters after its inner steps, in the order of its schema.
        served_by: whose seat it was, of a part that its neighbour brings.
    """

    lane: int
    stage: int
    round: int
    tokens: int
    theta_N: torch.Tensor
    served_by: PeerId | None = None


class StageWork(Protocol):
    """The compute of one seat, one call after another, wherever it is done. With what a call raises as a PotluckError the seat cannot
    go on, but for `arrived` and `restore`, which judge what others sent.
    """

    async def open(self) -> None:
        """Make the stage, with the run's newest parameters; first of all."""
        ...

    async def arrived(self, message: bytes, epoch: int, at: Point, work: Pass) -> None:
        """Take what was sent here for this pass, and keep it until that.

        Raises:
            RemoteProtocolError: anything else; nothing was computed.
        """
        ...

    async def run_pass(self, epoch: int, at: Point, work: Pass) -> bytes | None:
        """Compute it from what arrived; the message to the stage that goes on with it, where there is one."""
        ...

    async def square(self) -> float:
        """Of this stage's gradient."""
        ...

    async def take_step(self, at: Point, whole_square: float) -> bool:
        """The inner step; whether its tokens count."""
        ...

    async def snapshot(self) -> bytes:
        """All that the next step depends on."""
        ...

    async def restore(self, snapshot: bytes) -> None:
        """Go on from it; what was going on is forgotten.

        Raises:
            PotluckError: it is none of this stage.
        """
        ...

    async def theta(self) -> torch.Tensor:
        """(N,), a copy."""
        ...

    async def adopt(self, anchor_N: torch.Tensor) -> None:
        """Begin the next round from these parameters."""
        ...


Confirm = Callable[[], Awaitable[str]]
"""Asks who knows whether a part was its giver's to give; why not, or empty where it was. Whoever asks it is given that part."""


async def _no_gifts(_giver: PeerId, _share: LaneShare, _confirm: Confirm) -> str:
    return "nothing is brought into rounds for others here"


def _untold(_round: int) -> None:
    """Nobody here keeps count of rounds."""


@dataclass(frozen=True)
class LaneContext:
    """What every lane of a peer works with.

    Attributes:
        work_of: (lane, stage) to what computes it.
        average: brings a share into its round, and returns the stage's parameters for the next one, (N,).
        begins: is told of the round with which a lane begins here.
        take_gift: (who gives, a stage's part of a lane that is no more, who is asked whether it was to) to why it is not brought into
            the round here; empty where it is.
    """

    network: LaneNetwork
    offload: Offload
    form: LaneShape
    work_of: Callable[[int, int], StageWork]
    average: Callable[[LaneShare], Awaitable[torch.Tensor]]
    take_gift: Callable[[PeerId, LaneShare, Confirm], Awaitable[str]] = _no_gifts
    begins: Callable[[int], None] = _untold

    @property
    def config(self) -> LaneConfig:
        """The numbers of a lane."""
        return self.form.config

    @property
    def stages(self) -> StageMap:
        """Of the model."""
        return self.form.stages
