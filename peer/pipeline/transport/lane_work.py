"""What a seat in a lane works with: the network, the rounds, and what computes its stage, in this process or in another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

import torch

from averaging.network.seams.interfaces import Offload
from peer.pipeline.stage.lane_compute import LaneShape, LaneWork
from peer.pipeline.stage.synced_compute import Served, SyncedCompute
from peer.pipeline.transport.lane_network import LaneNetwork
from protocol.ids import PeerId
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import LaneConfig, Point
from protocol.tensors.stage_schema import StageMap

T = TypeVar("T")

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


class SyncedWork(StageWork, Protocol):
    """The compute of one replica of synced steps (peer/pipeline/stage/synced_compute.py), beside a seat's rounds and snapshots."""

    async def serve(self, at: Point, work: Pass, forward: bytes, backward: bytes) -> Served:
        """Do a piece of work from the bytes that came with it.

        Raises:
            RemoteProtocolError: bytes of something else; nothing was computed.
        """
        ...

    async def grant(self, number: int) -> None:
        """The micro-batch's gradients go into the sum."""
        ...

    async def drop(self, number: int) -> None:
        """They count nowhere."""
        ...

    async def forget(self) -> None:
        """The sum, and all gradients that lie apart."""
        ...

    async def own_sum(self) -> bytes:
        """What was granted here, added up."""
        ...

    async def total(self, sums: Sequence[bytes]) -> float:
        """Add up what the stage's replicas summed, in this order; the square of it.

        Raises:
            RemoteProtocolError: bytes that are no sum of this stage.
        """
        ...

    async def take_mean_step(self, at: Point, whole_square: float, counted: int) -> bool:
        """The inner step with the mean over so many micro-batches; whether its tokens count."""
        ...


def _not_told(_round: int, _nats: float | None) -> None:
    """What held-out text comes to is told to nobody."""


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
        bring: another stage's share, of a lane that is no more, to who holds that stage.
        begins: is told of the round with which a lane begins here.
        synced_of: as `work_of`, in a run of synced steps; None in a run of lanes.
        measured: (round, held-out loss of the parameters that it began with, nats a byte): this peer's part in measuring them is
            done; None where it is told by another peer, or not finite.
        take_gift: (who gives, a stage's part of a lane that is no more, who is asked whether it was to) to why it is not brought into
            the round here; empty where it is.
    """

    network: LaneNetwork
    offload: Offload
    form: LaneShape
    work_of: Callable[[int, int], StageWork]
    average: Callable[[LaneShare], Awaitable[torch.Tensor]]
    bring: Callable[[LaneShare], Awaitable[None]]
    take_gift: Callable[[PeerId, LaneShare, Confirm], Awaitable[str]] = _no_gifts
    synced_of: Callable[[int, int], SyncedWork] | None = None
    measured: Callable[[int, float | None], None] = _not_told
    begins: Callable[[int], None] = _untold

    @property
    def config(self) -> LaneConfig:
        """The numbers of a lane."""
        return self.form.config

    @property
    def stages(self) -> StageMap:
        """Of the model."""
        return self.form.stages

    @property
    def is_synced(self) -> bool:
        """Whether the run takes synced steps."""
        return self.synced_of is not None


class OffloadedWork:
    """The compute of a seat in this process, beside trio."""

    def __init__(self, work: LaneWork, offload: Offload) -> None:
        self._work = work
        self._offload = offload

    async def open(self) -> None:
        """As `StageWork`, each of these."""
        await self._run(self._work.open)

    async def arrived(self, message: bytes, epoch: int, at: Point, work: Pass) -> None:
        """As `StageWork`."""
        await self._run(partial(self._work.arrived, message, epoch, at, work))

    async def run_pass(self, epoch: int, at: Point, work: Pass) -> bytes | None:
        """As `StageWork`."""
        return await self._run(partial(self._work.run_pass, epoch, at, work))

    async def square(self) -> float:
        """As `StageWork`."""
        return await self._run(self._work.square)

    async def take_step(self, at: Point, whole_square: float) -> bool:
        """As `StageWork`."""
        return await self._run(partial(self._work.take_step, at, whole_square))

    async def snapshot(self) -> bytes:
        """As `StageWork`."""
        return await self._run(self._work.snapshot)

    async def restore(self, snapshot: bytes) -> None:
        """As `StageWork`."""
        await self._run(partial(self._work.restore, snapshot))

    async def theta(self) -> torch.Tensor:
        """As `StageWork`."""
        return await self._run(self._work.theta)

    async def adopt(self, anchor_N: torch.Tensor) -> None:
        """As `StageWork`."""
        await self._run(partial(self._work.adopt, anchor_N))

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._offload.run(work, cost_s=PASS_COST_S)


class OffloadedSynced(OffloadedWork):
    """The compute of a replica in this process, beside trio."""

    def __init__(self, work: SyncedCompute, offload: Offload) -> None:
        super().__init__(work, offload)
        self._synced = work

    async def serve(self, at: Point, work: Pass, forward: bytes, backward: bytes) -> Served:
        """As `SyncedWork`, each of these."""
        return await self._run(partial(self._synced.serve, at, work, forward, backward))

    async def grant(self, number: int) -> None:
        """As `SyncedWork`."""
        await self._run(partial(self._synced.grant, number))

    async def drop(self, number: int) -> None:
        """As `SyncedWork`."""
        await self._run(partial(self._synced.drop, number))

    async def forget(self) -> None:
        """As `SyncedWork`."""
        await self._run(self._synced.forget)

    async def own_sum(self) -> bytes:
        """As `SyncedWork`."""
        return await self._run(self._synced.own_sum)

    async def total(self, sums: Sequence[bytes]) -> float:
        """As `SyncedWork`."""
        return await self._run(partial(self._synced.total, sums))

    async def take_mean_step(self, at: Point, whole_square: float, counted: int) -> bool:
        """As `SyncedWork`."""
        return await self._run(partial(self._synced.take_mean_step, at, whole_square, counted))
