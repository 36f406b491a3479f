"""The computation of one stage of a lane: passes from message to message, steps, snapshots. Blocking, one call at a time.

Every message is checked against what this stage expects of this micro-batch: shape, type, size, identity and finite values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from averaging.codecs.rows.boundary import Boundary, BoundaryCodec, Direction, decode_boundary, encode_boundary
from peer.pipeline.stage.stage_ranks import StageRanks, alone_on_stage
from peer.pipeline.stage.stage_trainer import StageTrainer
from protocol.errors import LocalProtocolError
from protocol.ids import RunId
from protocol.pipeline.messages.lane_messages import lane_batch
from protocol.pipeline.micro_batch import MicroBatch
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import LaneConfig, Point
from protocol.tensors.stage_schema import StageMap, stage_schema


@dataclass(frozen=True)
class LaneShape:
    """Shape and type of what passes between the stages of a run's lanes.

    Attributes:
        shape: (sequences, tokens) of a micro-batch.
        forward_codec, backward_codec: of activations and of their gradients between stages.
        dtype: of parameters and of their summed gradients, at every peer.
    """

    run_id: RunId
    config: LaneConfig
    stages: StageMap
    shape: tuple[int, int]
    forward_codec: BoundaryCodec = "int8"
    backward_codec: BoundaryCodec = "int8"
    dtype: torch.dtype = torch.float32

    def batch(self, lane: int, epoch: int, at: Point, number: int) -> MicroBatch:
        """The identity of a micro-batch."""
        return lane_batch(self.run_id, lane, epoch, at, number, self.config.inner_steps)

    def boundary(self, lane: int, stage: int, epoch: int, at: Point, work: Pass) -> Boundary:
        """The message that a stage expects for this pass, including the exact bytes of its header."""
        codec = self.backward_codec if work.is_backward else self.forward_codec
        direction: Direction = "backward" if work.is_backward else "forward"
        batch = self.batch(lane, epoch, at, work.number)
        return Boundary(codec, direction, stage, batch, (*self.shape, self.stages.decoder.dim))


@dataclass(frozen=True, slots=True)
class Targets:
    """The next tokens of a micro-batch, (B, T) int64.

    Attributes:
        targets_BT: `NOT_COUNTED` for tokens that do not count.
        weight: of its mean loss in that of the whole step, or of the whole held-out text.
        share: its weight as a part of all.
    """

    targets_BT: torch.Tensor
    weight: float
    share: float


@dataclass(frozen=True)
class ComputeContext:
    """The inputs for computing a stage.

    Attributes:
        trainer_of: makes the trainer of a stage, with the run's newest parameters where a lane begins.
        tokens_of: maps (lane, point, number of the micro-batch) to (B, T + 1) int64, deterministically; held-out text for
            micro-batches that are only measured.
        learning_rate_of: the learning rate of an inner step.
        targets_of: of the same micro-batch, what counts; None if all of its next tokens do.
        ranks: the cards that hold the stage.
    """

    form: LaneShape
    trainer_of: Callable[[int], StageTrainer]
    tokens_of: Callable[[int, Point, int], torch.Tensor]
    learning_rate_of: Callable[[Point], float]
    targets_of: Callable[[int, Point, int], Targets] | None = None
    ranks: StageRanks = field(default_factory=alone_on_stage)


class LaneWork:
    """One stage in one lane, blocking. `open` makes its trainer, which all other calls but `arrived` need.

    If several cards hold the stage, each has such an object and makes the same calls. Results are the first one's.
    """

    def __init__(self, tools: ComputeContext, lane: int, stage: int) -> None:
        self.loss_nats: float | None = None
        """Mean over the tokens of the last inner step, at the last stage only."""

        self.heldout_nats: float | None = None
        """Mean over the held-out text, with the initial parameters of the round measured last."""

        self._tools = tools
        self._lane = lane
        self._stage = stage
        self.schema = stage_schema(tools.form.stages, stage)
        self._opened: StageTrainer | None = None
        self._held: dict[tuple[int, Point, Pass], torch.Tensor] = {}
        self._losses: list[tuple[float, float]] = []
        self._measured: list[tuple[float, float]] = []

    def open(self) -> None:
        """Make the stage."""
        self._opened = self._tools.trainer_of(self._stage)

    @property
    def in_flight(self) -> frozenset[int]:
        """Micro-batches with data held here: input for a pass, or activations kept for a backward pass."""
        kept = self._trainer.passes.kept
        return frozenset(work.number for _, _, work in self._held) | {batch.number for batch in kept}

    @property
    def _trainer(self) -> StageTrainer:
        if self._opened is None:
            raise LocalProtocolError(f"stage {self._stage} before it was made", "open it first")
        return self._opened

    def arrived(self, message: bytes, epoch: int, at: Point, work: Pass) -> None:
        """Keep the input of this pass, (B, T, D). Raises as `StageWork.arrived`."""
        boundary = self._tools.form.boundary(self._lane, self._stage, epoch, at, work)
        self._held[epoch, at, work] = decode_boundary(message, boundary)

    def run_pass(self, epoch: int, at: Point, work: Pass) -> bytes | None:
        """Compute the pass. Returns the message for the next stage in this direction, if there is one.

        Raises:
            PotluckError: the input or the result is not usable.
            RanksApart: as `StageRanks.joined`.
        """
        tools, form = self._tools, self._tools.form
        batch, arrived_BTD = form.batch(self._lane, epoch, at, work.number), self._held.pop((epoch, at, work), None)
        left = tools.ranks.joined(partial(self._computed, batch, at, work, arrived_BTD))
        if len(self._measured) == form.config.heldout_passes and batch.number >= form.config.num_micro_batches:
            self.heldout_nats = tools.ranks.mean(self._measured)
        if left is None:
            return None
        towards = self._stage + (-1 if work.is_backward else 1)
        return encode_boundary(left, form.boundary(self._lane, towards, epoch, at, work))

    def _computed(
        self, batch: MicroBatch, at: Point, work: Pass, arrived_BTD: torch.Tensor | None
    ) -> torch.Tensor | None:
        """This card's part of the pass: what leaves it, if anything does."""
        given_BTD = None if arrived_BTD is None else self._placed(arrived_BTD)
        if work.is_backward:
            return self._trainer.passes.backward(batch, given_BTD)
        return self._forward(batch, at, given_BTD)

    def _placed(self, rows: torch.Tensor) -> torch.Tensor:
        """This card's sequences, on it."""
        return self._trainer.placed(self._tools.ranks.own(rows))

    def _forward(self, batch: MicroBatch, at: Point, given_BTD: torch.Tensor | None) -> torch.Tensor | None:
        """The activations for the next stage; None at the last stage."""
        tools, passes, stages = self._tools, self._trainer.passes, self._tools.form.stages
        is_first, is_last = stages.is_first(self._stage), stages.is_last(self._stage)
        tokens_BT = tools.tokens_of(self._lane, at, batch.number) if is_first or is_last else None
        arrived = self._placed(tokens_BT[:, :-1]) if is_first and tokens_BT is not None else given_BTD
        if arrived is None:
            raise LocalProtocolError("a forward pass without activations", "those of the stage before")
        targets = self._targets(tokens_BT, at, batch.number) if is_last and tokens_BT is not None else None
        targets_BT, first = None if targets is None else targets.targets_BT, tools.form.config.num_micro_batches
        if batch.number >= first:
            left = passes.measured(batch, arrived, targets_BT=targets_BT)
            if targets is not None:
                self._measure(float(left), targets.weight, batch.number - first)
            return None if is_last else left
        share = 1.0 / first if targets is None else targets.share
        left = passes.forward(batch, arrived, targets_BT=targets_BT, share=share)
        if targets is None:
            return left
        self._losses.append((float(left), targets.weight))
        return None

    def _targets(self, tokens_BT: torch.Tensor, at: Point, number: int) -> Targets:
        """Those of this card's sequences, whose mean loss weighs as many of the micro-batch's tokens as count there."""
        tools = self._tools
        if tools.targets_of is None:
            whole = Targets(tokens_BT[:, 1:], 1.0, 1.0 / tools.form.config.num_micro_batches)
        else:
            whole = tools.targets_of(self._lane, at, number)
        own_BT = tools.ranks.own(whole.targets_BT)
        part = float((own_BT >= 0).sum()) / max(1.0, float((whole.targets_BT >= 0).sum()))
        return Targets(self._trainer.placed(own_BT), whole.weight * part, whole.share * part)

    def _measure(self, nats: float, weight: float, number: int) -> None:
        if number == 0:
            self._measured.clear()
        self._measured.append((nats, weight))

    def square(self) -> float:
        """Squared norm of this stage's gradient; 0 on other cards than the first."""
        return self._tools.ranks.square(self._trainer)

    def take_step(self, at: Point, whole_square: float) -> bool:
        """Take the inner step. Returns whether its tokens count."""
        ranks, trainer = self._tools.ranks, self._trainer
        if self._losses:
            self.loss_nats = ranks.mean(self._losses)
        self._losses.clear()
        counts = trainer.take_step(whole_square, self._tools.learning_rate_of(at), leads=ranks.takes_steps)
        if counts:
            ranks.spread(trainer.replica.parameters)
        return counts

    def snapshot(self, out: torch.Tensor) -> int:
        """Copy the complete state on which the next step depends; `when_written` tells when the copy is written. Returns its bytes.

        Args:
            out: memory for it that all cards can reach, uint8.
        """
        return self._tools.ranks.snapshot(self._trainer, out)

    def when_written(self, act: Callable[[BaseException | None], None]) -> None:
        """As `Bridge.when_sent`, for this card's part of the last snapshot."""
        self._trainer.bridge.when_sent(act)

    def restore(self, snapshot: torch.Tensor) -> None:
        """Continue from a snapshot, uint8, in memory that all cards can reach. Discards the present state.

        Raises:
            PotluckError: it is not a snapshot of this stage.
        """
        if self._tools.ranks.restore(self._trainer, snapshot):
            self._held.clear()
            self._losses.clear()

    def theta(self) -> torch.Tensor:
        """(N,), a copy."""
        return self._trainer.theta()

    def write_theta(self, out_N: torch.Tensor) -> None:
        """Write the parameters into (N,), which all cards can reach."""
        self._tools.ranks.write_theta(self._trainer, out_N)

    def adopt(self, anchor_N: torch.Tensor) -> None:
        """Begin the next round from these parameters, which the cards are given that `StageRanks.load` names."""
        self._tools.ranks.load(self._trainer, anchor_N)
