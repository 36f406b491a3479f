"""Lanes of real stages in one process: the machines decide, this does what they order; and the same run by whole data peers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from averaging.arithmetic.delta import pseudo_gradient
from averaging.arithmetic.weighted_mean import WeightedSum
from averaging.codecs.rows.boundary import BoundaryCodec
from peer.models.decoder import Decoder, load_flat, parameters_in_order
from peer.pipeline.stage.stage_trainer import StageSnapshot, StageTrainer
from peer.training.optimizers.optimizer import make_optimizer
from protocol.ids import PeerId
from protocol.pipeline import stage_machine as lane_stage
from protocol.pipeline.lanes import lane_machine as lane
from protocol.pipeline.schedule import most_in_flight
from protocol.pipeline.stage_machine import LaneConfig, Point
from protocol.rounds.messages.record import OuterStep
from protocol.run.training_sections import InnerSection
from tests.at_once import apply_outer_step
from tests.averaging.codecs.rows.rounded import quantised
from tests.peer.stage_world import (
    ANCHOR_N,
    MODEL,
    SCHEMA,
    STAGES,
    micro_batch,
    part_of,
    stage_model,
    tokens,
    whole_loss,
    whole_model,
)
from tests.peer.whole_snapshot import restore, snapshot_of

INNER = InnerSection(learning_rate=0.01, batch_tokens=32, clip_norm=0.5)
OUTER = OuterStep("nesterov", 0.7, 0.9)
NUM_MICRO_BATCHES = 2
MICRO_BATCH_TOKENS = 2 * 8
STEP_TOKENS = NUM_MICRO_BATCHES * MICRO_BATCH_TOKENS
NUM_STAGES = STAGES.num_stages


def lane_config(**changes: object) -> LaneConfig:
    numbers = {"schedule": "1f1b", "inner_steps": 5, "snapshot_steps": 2, **changes}
    return LaneConfig(num_stages=NUM_STAGES, num_micro_batches=NUM_MICRO_BATCHES, step_tokens=STEP_TOKENS, **numbers)  # type: ignore[arg-type]


def tokens_of(lane_number: int, at: Point, number: int) -> torch.Tensor:
    """(B, T + 1): which tokens a micro-batch has is known from its place alone, also when it is done again."""
    return tokens(1 + number + 10 * (at.step + 10 * (at.round + 10 * lane_number)))


Quantise = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Member:
    """One stage at one peer."""

    state: lane_stage.StageState
    trainer: StageTrainer


@dataclass
class LaneWorld:
    """One lane. `kill_when` is asked before each pass, with the stage and the order: where it says so that member is gone.

    Attributes:
        forward, backward: what crosses between stages is made of what is sent.
    """

    number: int
    config: LaneConfig
    spares: int = 0
    kill_when: Callable[[int, lane_stage.RunPass], bool] = lambda stage, order: False
    forward: Quantise = lambda values: values
    backward: Quantise = lambda values: values
    members: list[Member] = field(default_factory=list)
    keeper: lane.LaneState | None = None
    snapshots: dict[tuple[int, Point], StageSnapshot] = field(default_factory=dict)
    contributed: dict[int, int] = field(default_factory=dict)
    dissolved: lane.Dissolve | None = None
    num_killed: int = 0
    _queue: deque[tuple[int | None, object]] = field(default_factory=deque)
    _held: dict[tuple[int, Point, int, bool], torch.Tensor] = field(default_factory=dict)

    def begin(self) -> None:
        at = Point(0, 0)
        names = tuple(PeerId(f"{self.number}.{stage}") for stage in range(NUM_STAGES))
        self.keeper = lane.begin(self.config, names, at, 0.0)
        spares = tuple((PeerId(f"{self.number}.spare.{n}"), frozenset(range(NUM_STAGES))) for n in range(self.spares))
        self._tell_keeper(lane.SparesListed(spares))
        for stage in range(NUM_STAGES):
            begun = lane_stage.begin(self.config, stage, at)
            self.members.append(Member(begun.state, self._trainer(stage)))
            self._perform(stage, begun.orders)
        self._run()

    def adopt(self, anchor_N: torch.Tensor, round_: int) -> None:
        """The round's commit is in every stage."""
        self.contributed.clear()
        for stage, member in enumerate(self.members):
            member.trainer.load(part_of(anchor_N, stage))
            self._queue.append((stage, lane_stage.Adopted(member.state.epoch, round_)))
        self._run()

    def theta(self) -> tuple[torch.Tensor, int]:
        """(N,) and its tokens: of all stages, or of the last snapshot of a lane that is no more."""
        if self.dissolved is not None:
            parts = [self.snapshots[stage, self.dissolved.at].theta_N for stage in range(NUM_STAGES)]
            return torch.cat(parts), self.dissolved.tokens
        (weight,) = set(self.contributed.values())
        return torch.cat([member.trainer.theta() for member in self.members]), weight

    def _trainer(self, stage: int) -> StageTrainer:
        kept = most_in_flight(self.config.schedule, stage, NUM_STAGES, NUM_MICRO_BATCHES)
        return StageTrainer(stage_model(stage), INNER, most_kept=kept)

    def _run(self) -> None:
        while self._queue:
            stage, event = self._queue.popleft()
            if stage is None:
                self._tell_keeper(event)
            elif self.dissolved is None:
                done = lane_stage.step(self.members[stage].state, event)
                self.members[stage].state = done.state
                self._perform(stage, done.orders)

    def _tell_keeper(self, event: object, now_s: float = 0.0) -> None:
        assert self.keeper is not None
        done = lane.step(self.keeper, event, now_s)
        before, self.keeper = self.keeper, done.state
        for order in done.orders:
            match order:
                case lane.AgreeStep():
                    self._tell_all(lane_stage.StepAgreed(order.epoch, order.at, order.whole_square))
                case lane.KeepFrom():
                    self._tell_all(lane_stage.SnapshotWhole(self.keeper.epoch, order.at))
                case lane.GoBack():
                    self._go_back(before.members, order)
                case lane.Resume():
                    self._tell_all(lane_stage.Resumed(order.epoch))
                case lane.Dissolve():
                    self.dissolved = order

    def _go_back(self, before: tuple[PeerId, ...], order: lane.GoBack) -> None:
        back = lane_stage.WentBack(order.epoch, order.at, order.counted)
        for stage, member in enumerate(order.members):
            if member == before[stage]:
                self._queue.append((stage, back))
            else:
                joined = lane_stage.join(self.config, stage, back)
                self.members[stage] = Member(joined.state, self._trainer(stage))
                self._perform(stage, joined.orders)

    def _tell_all(self, event: object) -> None:
        self._queue.extend((stage, event) for stage in range(NUM_STAGES))

    def _perform(self, stage: int, orders: tuple[object, ...]) -> None:
        assert self.keeper is not None
        member, me = self.members[stage], self.keeper.members[stage]
        epoch = member.state.epoch
        for order in orders:
            match order:
                case lane_stage.RunPass():
                    self._pass(stage, order)
                case lane_stage.TellSquare():
                    square = member.trainer.gradient_square()
                    self._queue.append((None, lane.SquareReported(me, epoch, order.at, square)))
                case lane_stage.TakeStep():
                    counts = member.trainer.take_step(order.whole_square, INNER.learning_rate)
                    self._queue.append((stage, lane_stage.StepTaken(epoch, order.at, counts)))
                case lane_stage.TakeSnapshot():
                    self.snapshots[stage, order.at] = snapshot_of(member.trainer)
                    self._queue.append((stage, lane_stage.SnapshotTaken(epoch, order.at)))
                    self._queue.append((None, lane.SnapshotReported(me, epoch, order.at)))
                case lane_stage.LoadSnapshot():
                    restore(member.trainer, self.snapshots[stage, order.at])
                    self._queue.append((stage, lane_stage.SnapshotLoaded(epoch)))
                    self._queue.append((None, lane.LoadedReported(me, epoch)))
                case lane_stage.Contribute():
                    self.contributed[stage] = order.tokens

    def _pass(self, stage: int, order: lane_stage.RunPass) -> None:
        assert self.keeper is not None
        if self.kill_when(stage, order):
            self.num_killed += 1
            self._tell_keeper(lane.MemberLost(self.keeper.members[stage]))
            if self.keeper.phase == "wanting":
                self._tell_keeper(lane.SparesListed(()), now_s=2.5)
            return
        member, work, at = self.members[stage], order.work, order.at
        epoch = member.state.epoch
        batch = micro_batch(work.number, step=at.round * self.config.inner_steps + at.step, lane=self.number)
        tokens_BT = tokens_of(self.number, at, work.number)
        is_last = stage == NUM_STAGES - 1
        held = self._held.pop((stage, at, work.number, work.is_backward), None)
        if work.is_backward:
            left, towards, quantise = member.trainer.passes.backward(batch, held), stage - 1, self.backward
        else:
            arrived = tokens_BT[:, :-1] if held is None else held
            targets_BT = tokens_BT[:, 1:] if is_last else None
            share = 1.0 / NUM_MICRO_BATCHES
            left = member.trainer.passes.forward(batch, arrived, targets_BT=targets_BT, share=share)
            towards, quantise = (None if is_last else stage + 1), self.forward
        self._queue.append((stage, lane_stage.PassDone(epoch, at, work)))
        if towards is not None and towards >= 0 and left is not None:
            self._held[towards, at, work.number, work.is_backward] = quantise(left)
            self._queue.append((towards, lane_stage.Arrived(epoch, at, work)))


def averaged(
    anchor_N: torch.Tensor, momentum_N: torch.Tensor, contributions: list[tuple[torch.Tensor, int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """One round of one unit by the run's own arithmetic, in float64 and without a codec."""
    total = WeightedSum(anchor_N.numel(), torch.float64)
    for theta_N, weight in contributions:
        total.add(weight, pseudo_gradient(anchor_N, theta_N))
    return apply_outer_step(anchor_N, momentum_N, total.mean(), OUTER)


def run_lanes(lanes: list[LaneWorld], rounds: int) -> torch.Tensor:
    """(N,) the run's anchor after so many rounds, each stage averaged by itself."""
    anchor_N = ANCHOR_N.double()
    momentum_N = torch.zeros_like(anchor_N)
    for one in lanes:
        one.begin()
    for round_ in range(rounds):
        thetas = [one.theta() for one in lanes]
        moved = [
            averaged(
                part_of(anchor_N, stage),
                part_of(momentum_N, stage),
                [(part_of(theta_N, stage), weight) for theta_N, weight in thetas],
            )
            for stage in range(NUM_STAGES)
        ]
        anchor_N, momentum_N = (torch.cat(parts) for parts in zip(*moved, strict=True))
        if round_ + 1 < rounds:
            for one in lanes:
                one.adopt(anchor_N, round_)
    return anchor_N


def run_data_peers(
    num_peers: int,
    rounds: int,
    inner_steps: int,
    *,
    steps_of: Callable[[int, int], int] | None = None,
    loss: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor] = whole_loss,
    models: Callable[[], torch.nn.Module] = whole_model,
    micro_batches: int = NUM_MICRO_BATCHES,
    inner: InnerSection = INNER,
) -> torch.Tensor:
    """The same run by peers that hold the whole model (DiLoCo), in one process.

    Args:
        steps_of: inner steps that a peer comes to in a round, where it is not all of them.
        micro_batches: of a step.
    """
    anchor_N = ANCHOR_N.double()
    momentum_N = torch.zeros_like(anchor_N)
    peers = []
    for _ in range(num_peers):
        model = models()
        parameters = parameters_in_order(model, SCHEMA)
        peers.append((model, parameters, make_optimizer(inner, SCHEMA, parameters)))
    for round_ in range(rounds):
        contributions = []
        for number, (model, parameters, optimizer) in enumerate(peers):
            load_flat(model, SCHEMA, anchor_N)
            steps = steps_of(number, round_) if steps_of else inner_steps
            for step in range(steps):
                for micro in range(micro_batches):
                    tokens_BT = tokens_of(number, Point(round_, step), micro)
                    torch.autograd.backward(loss(model, tokens_BT) / micro_batches)
                torch.nn.utils.clip_grad_norm_(parameters, inner.clip_norm)
                optimizer.step(inner.learning_rate)
                optimizer.zero_grad()
            theta_N = torch.cat([parameter.detach().flatten() for parameter in parameters])
            contributions.append((theta_N, steps * micro_batches * MICRO_BATCH_TOKENS))
        anchor_N, momentum_N = averaged(anchor_N, momentum_N, contributions)
    return anchor_N


class _Crossing(torch.autograd.Function):
    """The values that two codecs leave of activations and of their gradients, as if nothing had happened to either."""

    @staticmethod
    def forward(ctx: Any, values_BTD: torch.Tensor, forward: BoundaryCodec, backward: BoundaryCodec) -> torch.Tensor:
        ctx.codec = backward
        return quantised(values_BTD, forward)

    @staticmethod
    def backward(ctx: Any, grad_BTD: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return quantised(grad_BTD, ctx.codec), None, None


class CrossedDecoder(Decoder):
    """The whole decoder in one place, with what the codecs leave where stages meet."""

    codecs: tuple[BoundaryCodec, BoundaryCodec] = ("fp64", "fp64")

    def hidden(self, arrived: torch.Tensor, *shared: object) -> torch.Tensor:
        x_BTD = self.embed(arrived)
        for number, layer in enumerate(self.layers, 1):
            x_BTD = layer(x_BTD, self.table)
            if number in {stop for _, stop in STAGES.spans[:-1]}:
                x_BTD = _Crossing.apply(x_BTD, *self.codecs)
        return self.norm(x_BTD)


def crossed_model(
    forward: BoundaryCodec, backward: BoundaryCodec, dtype: torch.dtype = torch.float64
) -> CrossedDecoder:
    model = CrossedDecoder(MODEL).to(dtype)
    load_flat(model, SCHEMA, ANCHOR_N)
    model.codecs = (forward, backward)
    return model
