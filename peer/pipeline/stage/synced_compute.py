"""What a replica of synced steps computes: passes from the bytes that the owner holds, gradients apart until they count, sums.

As peer/pipeline/stage/lane_compute.py, of which it has its stage, snapshots and rounds: blocking, one call at a time. Nothing is
kept of a forward pass: a backward pass comes with all that it needs, and goes forward once more, wherever it is done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from averaging.codecs.boundary import Boundary, decode_boundary, encode_boundary
from peer.pipeline.stage.lane_compute import ComputeContext, LaneWork
from peer.pipeline.stage.stage_passes import UncountedPass
from peer.pipeline.stage.stage_snapshot import decode_sum, encode_snapshot
from peer.pipeline.stage.stage_trainer import StageSnapshot
from protocol.errors import LocalProtocolError
from protocol.pipeline.micro_batch import MicroBatch
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point


@dataclass(frozen=True, slots=True)
class Served:
    """What came of a piece of work.

    Attributes:
        left: the message to the stage that goes on with it; empty where none does.
        is_spoilt: something of it is not finite: the micro-batch counts nowhere.
        loss_nats: mean over the micro-batch, at the last stage; nats a token, from a training process of held-out text nats a byte.
    """

    left: bytes = b""
    is_spoilt: bool = False
    loss_nats: float = 0.0


class SyncedCompute(LaneWork):
    """One stage's replica, blocking; `open` makes its trainer."""

    def __init__(self, tools: ComputeContext, lane: int, stage: int) -> None:
        super().__init__(tools, lane, stage)
        self._apart: dict[int, UncountedPass] = {}

    @property
    def in_flight(self) -> frozenset[int]:
        """Micro-batches whose gradients lie apart here."""
        return super().in_flight | self._apart.keys()

    def serve(self, at: Point, work: Pass, forward: bytes, backward: bytes) -> Served:
        """Do a piece of work of the step at this point.

        Args:
            forward: activations of the stage before; empty at the first one.
            backward: their gradient from the stage after; empty for a forward pass, and at the last stage.

        Raises:
            RemoteProtocolError: bytes that are not of this micro-batch, stage or step; nothing was computed.
        """
        form, stages = self._tools.form, self._tools.form.stages
        is_first, is_last = stages.is_first(self._stage), stages.is_last(self._stage)
        batch = form.batch(self._lane, 0, at, work.number)
        tokens_BT = self._tokens(at, work) if is_first or is_last else None
        if is_first and tokens_BT is not None:
            arrived = tokens_BT[:, :-1]
        else:
            arrived = self._placed(forward, self._boundary(self._stage, at, work, False))
        targets_BT = tokens_BT[:, 1:] if is_last and tokens_BT is not None else None
        if not work.is_backward:
            return self._forward_alone(at, work, batch, arrived, targets_BT)
        grad_BTD = None if is_last else self._placed(backward, self._boundary(self._stage, at, work, True))
        apart = self._trainer.passes.replayed(batch, arrived, grad_BTD, targets_BT=targets_BT)
        loss_nats = 0.0 if apart.loss is None else apart.loss
        if not math.isfinite(loss_nats) or not all(
            bool(torch.isfinite(gradient).all()) for gradient in apart.gradients
        ):
            return Served(is_spoilt=True)
        self._apart[work.number] = apart
        if apart.grad_BTD is None:
            return Served()
        served = self._served(apart.grad_BTD, self._boundary(self._stage - 1, at, work, True))
        return Served(served.left, served.is_spoilt, loss_nats)

    def _forward_alone(
        self, at: Point, work: Pass, batch: MicroBatch, arrived: torch.Tensor, targets_BT: torch.Tensor | None
    ) -> Served:
        passes = self._trainer.passes
        if targets_BT is None:
            return self._served(passes.measured(batch, arrived), self._boundary(self._stage + 1, at, work, False))
        if work.number < self._tools.form.config.num_micro_batches:
            raise LocalProtocolError("a forward pass of the last stage alone", "both ways at once: it has the loss")
        nats = float(passes.measured(batch, arrived, targets_BT=targets_BT))
        return Served(loss_nats=nats) if math.isfinite(nats) else Served(is_spoilt=True)

    def grant(self, number: int) -> None:
        """The micro-batch's gradients count: into the sum."""
        found = self._apart.pop(number, None)
        if found is None:
            raise LocalProtocolError(f"micro-batch {number} to be summed", "one whose gradients lie apart here")
        self._trainer.passes.fold(found.gradients)
        if found.loss is not None:
            self._losses.append(found.loss)

    def drop(self, number: int) -> None:
        """They do not count."""
        self._apart.pop(number, None)

    def forget(self) -> None:
        """The sum, and all that lies apart."""
        self._apart.clear()
        self._losses.clear()
        self._trainer.passes.forget()

    def own_sum(self) -> bytes:
        """The gradients that were granted, added up, in the parameters' own type."""
        return encode_snapshot(StageSnapshot(self._trainer.passes.summed().cpu(), ()))

    def total(self, sums: Sequence[bytes]) -> float:
        """Add up the sums of the stage's replicas, in this order, for the step; returns the square of what they come to.

        Raises:
            RemoteProtocolError: bytes that are no sum of this stage.
        """
        decoded = [decode_sum(data, self._schema, self._trainer.passes.dtype) for data in sums]
        self._apart.clear()
        self._trainer.passes.forget()
        for sum_N in decoded:
            self._trainer.passes.fold_flat(self._trainer.placed(sum_N))
        return self._trainer.gradient_square()

    def take_mean_step(self, at: Point, whole_square: float, counted: int) -> bool:
        """The inner step with the mean over `counted` micro-batches; whether its tokens count. Without any nothing moves."""
        if counted < 1:
            self.forget()
            return False
        return self.take_step(at, whole_square, scale=1.0 / counted)

    def _tokens(self, at: Point, work: Pass) -> torch.Tensor:
        """(B, T + 1), which the first stage reads, and the last one for what comes next."""
        return self._trainer.placed(self._tools.tokens_of(self._lane, at, work.number))

    def _placed(self, message: bytes, boundary: Boundary) -> torch.Tensor:
        return self._trainer.placed(decode_boundary(message, boundary))

    def _boundary(self, stage: int, at: Point, work: Pass, is_backward: bool) -> Boundary:
        return self._tools.form.boundary(self._lane, stage, 0, at, Pass(work.number, is_backward))

    def _served(self, left_BTD: torch.Tensor, boundary: Boundary) -> Served:
        if not math.isfinite(float(left_BTD.abs().max())):
            return Served(is_spoilt=True)
        return Served(encode_boundary(left_BTD, boundary))
