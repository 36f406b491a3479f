"""What one stage of a lane computes: passes from message to message, steps, snapshots. Blocking; called beside trio, one at a time.

What arrives is checked here against what this stage expects of this very micro-batch: shape, type, size, identity, finite values.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import torch

from averaging.codecs.boundary import Boundary, BoundaryCodec, Direction, decode_boundary, encode_boundary
from averaging.network.seams import Network, Offload
from peer.stage_snapshot import decode_snapshot, encode_snapshot
from peer.stage_trainer import StageTrainer
from protocol.errors import LocalProtocolError
from protocol.ids import RunId
from protocol.pipeline.lane_messages import lane_batch
from protocol.pipeline.lane_stage import LaneConfig, Point
from protocol.pipeline.micro_batch import MicroBatch
from protocol.pipeline.schedule import Pass
from protocol.stage_schema import StageMap, stage_schema

PASS_COST_S: Final = 0.01
"""What a pass, a step or a snapshot costs in virtual time."""


@dataclass(frozen=True, slots=True)
class LaneShare:
    """One stage's part of what a lane brings into a round; the same share may be brought twice, and counts once.

    Attributes:
        theta_N: (N,) the stage's parameters after its inner steps, in the order of its schema.
    """

    lane: int
    stage: int
    round: int
    tokens: int
    theta_N: torch.Tensor


@dataclass(frozen=True)
class LaneTools:
    """What every lane of a peer works with.

    Attributes:
        shape: (sequences, tokens) of a micro-batch.
        forward_codec, backward_codec: of activations and of their gradients between stages.
        trainer_of: a stage, with the run's newest parameters where a lane begins.
        tokens_of: (lane, point, number of the micro-batch) to (B, T + 1) int64: the same whenever it is asked for.
        learning_rate_of: an inner step's.
        average: brings a share into its round, and returns the stage's parameters for the next one, (N,).
    """

    run_id: RunId
    network: Network
    offload: Offload
    config: LaneConfig
    stages: StageMap
    shape: tuple[int, int]
    trainer_of: Callable[[int], StageTrainer]
    tokens_of: Callable[[int, Point, int], torch.Tensor]
    learning_rate_of: Callable[[Point], float]
    average: Callable[[LaneShare], Awaitable[torch.Tensor]]
    forward_codec: BoundaryCodec = "int8"
    backward_codec: BoundaryCodec = "int8"


class LaneWork:
    """One stage in one lane; `open` makes its trainer, which the rest needs but for `boundary` and `arrived`."""

    def __init__(self, tools: LaneTools, lane: int, stage: int) -> None:
        self._tools = tools
        self._lane = lane
        self._stage = stage
        self._schema = stage_schema(tools.stages, stage)
        self._opened: StageTrainer | None = None

    def open(self) -> None:
        """Make the stage."""
        self._opened = self._tools.trainer_of(self._stage)

    @property
    def _trainer(self) -> StageTrainer:
        if self._opened is None:
            raise LocalProtocolError(f"stage {self._stage} before it was made", "open it first")
        return self._opened

    def boundary(self, stage: int, epoch: int, at: Point, work: Pass) -> Boundary:
        """What a stage is to be sent for this pass, to the byte of its head."""
        tools = self._tools
        batch = lane_batch(tools.run_id, self._lane, epoch, at, work.number, tools.config.inner_steps)
        codec = tools.backward_codec if work.is_backward else tools.forward_codec
        direction: Direction = "backward" if work.is_backward else "forward"
        return Boundary(codec, direction, stage, batch, (*tools.shape, tools.stages.decoder.dim))

    def arrived(self, message: bytes, epoch: int, at: Point, work: Pass) -> torch.Tensor:
        """(B, T, D) of what was sent here for this pass.

        Raises:
            RemoteProtocolError: anything else; nothing was computed.
        """
        return decode_boundary(message, self.boundary(self._stage, epoch, at, work))

    def run_pass(self, epoch: int, at: Point, work: Pass, arrived_BTD: torch.Tensor | None) -> bytes | None:
        """Compute it; returns the message to the stage that goes on with it, where there is one.

        Raises:
            PotluckError: what arrived, or what came of it, cannot be worked with.
        """
        tools, passes = self._tools, self._trainer.passes
        batch = lane_batch(tools.run_id, self._lane, epoch, at, work.number, tools.config.inner_steps)
        given_BTD = None if arrived_BTD is None else self._trainer.placed(arrived_BTD)
        if work.is_backward:
            towards, left = self._stage - 1, passes.backward(batch, given_BTD)
        else:
            towards, left = self._stage + 1, self._forward(batch, at, given_BTD)
        if left is None:
            return None
        return encode_boundary(left, self.boundary(towards, epoch, at, work))

    def _forward(self, batch: MicroBatch, at: Point, given_BTD: torch.Tensor | None) -> torch.Tensor | None:
        """What goes on; nothing behind the last stage."""
        tools, passes = self._tools, self._trainer.passes
        is_first, is_last = tools.stages.is_first(self._stage), tools.stages.is_last(self._stage)
        tokens_BT = self._trainer.placed(tools.tokens_of(self._lane, at, batch.number)) if is_first or is_last else None
        arrived = tokens_BT[:, :-1] if is_first and tokens_BT is not None else given_BTD
        if arrived is None:
            raise LocalProtocolError("a forward pass without activations", "those of the stage before")
        targets_BT = tokens_BT[:, 1:] if is_last and tokens_BT is not None else None
        left = passes.forward(batch, arrived, targets_BT=targets_BT, share=1.0 / tools.config.num_micro_batches)
        return None if is_last else left

    def square(self) -> float:
        """Of this stage's gradient."""
        return self._trainer.gradient_square()

    def take_step(self, at: Point, whole_square: float) -> bool:
        """The inner step; whether its tokens count."""
        return self._trainer.take_step(whole_square, self._tools.learning_rate_of(at))

    def snapshot(self) -> bytes:
        """All that the next step depends on."""
        return encode_snapshot(self._trainer.snapshot())

    def restore(self, snapshot: bytes) -> None:
        """Go on from it; what was going on is forgotten.

        Raises:
            PotluckError: it is none of this stage.
        """
        self._trainer.restore(decode_snapshot(snapshot, self._schema))

    def theta(self) -> torch.Tensor:
        """(N,), a copy."""
        return self._trainer.theta()

    def adopt(self, anchor_N: torch.Tensor) -> None:
        """Begin the next round from these parameters."""
        self._trainer.load(anchor_N)
