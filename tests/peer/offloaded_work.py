"""A seat's compute in the test's own process, beside trio: what a training process does in a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from averaging.network.seams.interfaces import Offload
from peer.pipeline.stage.lane_compute import LaneWork
from peer.pipeline.stage.stage_snapshot import Written
from peer.pipeline.transport.lane_work import PASS_COST_S
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from tests.peer.whole_snapshot import in_memory, taken

T = TypeVar("T")


class OffloadedWork:
    """As `StageWork`."""

    def __init__(self, work: LaneWork, offload: Offload) -> None:
        self._work = work
        self._offload = offload

    async def open(self) -> None:
        await self._run(self._work.open)

    async def arrived(self, message: bytes, epoch: int, at: Point, work: Pass) -> None:
        await self._run(partial(self._work.arrived, message, epoch, at, work))

    async def run_pass(self, epoch: int, at: Point, work: Pass) -> bytes | None:
        return await self._run(partial(self._work.run_pass, epoch, at, work))

    async def square(self) -> float:
        return await self._run(self._work.square)

    async def take_step(self, at: Point, whole_square: float) -> bool:
        return await self._run(partial(self._work.take_step, at, whole_square))

    async def snapshot(self) -> Written:
        data = await self._run(partial(taken, self._work))

        async def written() -> bytes:
            return data

        return written

    async def restore(self, snapshot: bytes) -> None:
        await self._run(partial(self._work.restore, in_memory(snapshot)))

    async def theta(self) -> torch.Tensor:
        return await self._run(self._work.theta)

    async def adopt(self, anchor_N: torch.Tensor) -> None:
        await self._run(partial(self._work.adopt, anchor_N))

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._offload.run(work, cost_s=PASS_COST_S)
