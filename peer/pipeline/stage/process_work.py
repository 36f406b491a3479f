"""One seat's computation in the training process of its stage, in the order of the seat's calls (stage_process.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import torch
import trio

from peer.pipeline.stage.snapshot_bytes import SnapshotBytes
from peer.pipeline.stage.stage_channel import StageOp, StageReply
from peer.pipeline.stage.stage_process import ANSWER_WITHIN_S, NO_FIELDS, StageProcess, process_died
from peer.pipeline.stage.stage_snapshot import Written
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point

Newest = Callable[[], tuple[torch.Tensor, int]]
"""Returns a stage's newest outer parameters, (N,), and the run's committed tokens at that point."""


class StageListener(Protocol):
    """Receives reports on the work of the process."""

    def stepped(self, reply: StageReply) -> None:
        """An inner step was taken."""
        ...

    def passed(self, at: Point, work: Pass, reply: StageReply) -> None:
        """A pass was computed."""
        ...

    def worked(self, work: Pass | None, busy_s: float) -> None:
        """The process was busy this long with a pass, or with the end of a step."""
        ...


class ProcessWork:
    """One seat's computation in the training process (peer/pipeline/transport/lane_work.py).

    Other cards than now take the stage over while the seat waits for its share's commit: between `theta` and `adopt`, or `restore` if
    the lane goes back meanwhile. The lane does not see it, unless their processes take longer to begin than it waits.
    """

    def __init__(self, process: StageProcess, lane: int, newest: Newest, listener: StageListener) -> None:
        self._process = process
        self._lane = lane
        self._newest = newest
        self._listener = listener
        self._life = -1
        self._left: SnapshotBytes = b""
        """The snapshot that the processes on other cards continue from."""

        self._is_whole = trio.Event()
        self._is_whole.set()

    async def open(self) -> None:
        """As `StageWork`."""
        self._life = self._process.restarts
        anchor_N, schedule_tokens = self._newest()
        await self._process.ask("open", {"lane": self._lane, "schedule_tokens": schedule_tokens}, vector_N=anchor_N)

    async def arrived(self, message: bytes, epoch: int, at: Point, work: Pass) -> None:
        """As `StageWork`."""
        await self._ask("arrived", _pass_fields(epoch, at, work), blob=message)

    async def run_pass(self, epoch: int, at: Point, work: Pass) -> bytes | None:
        """As `StageWork`."""
        reply, left = await self._ask("run_pass", _pass_fields(epoch, at, work))
        self._listener.passed(at, work, reply)
        self._listener.worked(work, reply.busy_s)
        return left or None

    async def square(self) -> float:
        """As `StageWork`."""
        reply, _ = await self._ask("square")
        return float.fromhex(reply.square)

    async def take_step(self, at: Point, whole_square: float) -> bool:
        """As `StageWork`."""
        fields = {"round": at.round, "step": at.step, "whole_square": whole_square.hex()}
        reply, _ = await self._ask("take_step", fields)
        self._listener.stepped(reply)
        self._listener.worked(None, reply.busy_s)
        return reply.counts

    async def snapshot(self) -> Written:
        """As `StageWork`."""
        self._require_same_life("snapshot")
        taken = await self._process.snapshots.take()
        return partial(self._written, taken)

    async def _written(self, taken: StageReply) -> SnapshotBytes:
        self._require_same_life("written")
        return await self._process.snapshots.written(taken)

    async def restore(self, snapshot: SnapshotBytes) -> None:
        """As `StageWork`."""
        if self._left:
            self._left = snapshot
            await self._continue_on_others("restore")
            return
        self._require_same_life("restore")
        await self._process.snapshots.restore(snapshot)

    async def theta(self) -> torch.Tensor:
        """As `StageWork`."""
        await self._ask("theta")
        theta_N = await self._process.theta()
        if self._process.is_to_begin_anew:
            written = await self.snapshot()
            self._left, self._is_whole = await written(), trio.Event()
            self._process.begin_anew()
        return theta_N

    async def adopt(self, anchor_N: torch.Tensor) -> None:
        """As `StageWork`."""
        if self._left:
            await self._continue_on_others("adopt")
        _, schedule_tokens = self._newest()
        await self._process.ask("adopt", {"schedule_tokens": schedule_tokens}, vector_N=anchor_N)

    async def _continue_on_others(self, op: StageOp) -> None:
        """Go on from what is left. A seat that is cancelled here continues by `restore`, once its lane goes back: it stays then."""
        is_cut = False
        try:
            with trio.fail_after(ANSWER_WITHIN_S):
                await self._process.until_begun()
            await self.open()
            self._require_same_life(op)
            await self._process.snapshots.restore(self._left)
        except trio.Cancelled:
            is_cut = True
            raise
        except trio.TooSlowError as error:
            raise process_died(op) from error
        finally:
            if not is_cut:
                self._left = b""
                self._is_whole.set()

    async def _ask(
        self, op: StageOp, fields: Mapping[str, object] = NO_FIELDS, *, blob: bytes = b""
    ) -> tuple[StageReply, bytes]:
        if op == "arrived":
            with trio.move_on_after(ANSWER_WITHIN_S):
                await self._is_whole.wait()
        self._require_same_life(op)
        return await self._process.ask(op, fields, blob=blob)

    def _require_same_life(self, op: StageOp) -> None:
        if self._life != self._process.restarts:
            raise process_died(op)


def _pass_fields(epoch: int, at: Point, work: Pass) -> dict[str, object]:
    return {
        "epoch": epoch,
        "round": at.round,
        "step": at.step,
        "micro_batch": work.number,
        "is_backward": work.is_backward,
    }
