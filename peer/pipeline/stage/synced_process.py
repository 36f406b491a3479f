"""A replica's compute in the training process (peer/pipeline/stage/stage_process.py)."""

from __future__ import annotations

from collections.abc import Sequence

from peer.pipeline.stage.stage_process import ProcessWork
from peer.pipeline.stage.synced_compute import Served
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point


class ProcessSynced(ProcessWork):
    """One replica's compute; what a lane's seat does as well is there."""

    async def serve(self, at: Point, work: Pass, forward: bytes, backward: bytes) -> Served:
        """As `SyncedWork` (peer/pipeline/transport/lane_work.py), each of these."""
        fields = {
            "round": at.round,
            "step": at.step,
            "micro_batch": work.number,
            "is_backward": work.is_backward,
            "part_bytes": (len(forward), len(backward)),
        }
        reply, left = await self._ask("serve", fields, blob=forward + backward)
        self._told.worked(work, reply.busy_s)
        return Served(left, reply.is_spoilt, reply.loss_nats or 0.0)

    async def grant(self, number: int) -> None:
        """As `SyncedWork`."""
        await self._ask("grant", {"micro_batch": number})

    async def drop(self, number: int) -> None:
        """As `SyncedWork`."""
        await self._ask("drop", {"micro_batch": number})

    async def forget(self) -> None:
        """As `SyncedWork`."""
        await self._ask("forget")

    async def own_sum(self) -> bytes:
        """As `SyncedWork`."""
        _, data = await self._ask("own_sum")
        return data

    async def total(self, sums: Sequence[bytes]) -> float:
        """As `SyncedWork`."""
        reply, _ = await self._ask("total", {"part_bytes": tuple(map(len, sums))}, blob=b"".join(sums))
        return float.fromhex(reply.square)

    async def take_mean_step(self, at: Point, whole_square: float, counted: int) -> bool:
        """As `SyncedWork`."""
        fields = {"round": at.round, "step": at.step, "whole_square": whole_square.hex(), "counted": counted}
        reply, _ = await self._ask("take_mean_step", fields)
        self._told.stepped(reply)
        self._told.worked(None, reply.busy_s)
        return reply.counts
