"""Synced steps of real stages: the replicas of `tests.protocol.pipeline.synced_world` compute, and one process does the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from peer.models.decoder import parameters_in_order
from peer.models.optimizer import make_optimizer
from peer.pipeline.stage.stage_passes import UncountedPass
from peer.pipeline.stage.stage_trainer import StageSnapshot, StageTrainer
from protocol.ids import PeerId
from protocol.pipeline.synced import synced
from protocol.pipeline.synced_routing import Work
from tests.peer.lane_world import INNER, NUM_STAGES
from tests.peer.stage_world import ANCHOR_N, SCHEMA, micro_batch, stage_model, tokens, whole_loss, whole_model
from tests.protocol.pipeline.synced_world import SyncedWorld


def tokens_of(step: int, number: int) -> torch.Tensor:
    return tokens(1 + number + 100 * step)


@dataclass
class TorchWorld(SyncedWorld):
    """Attributes: `held` are the bytes that the owner keeps of a step, `states` the newest state of each stage."""

    cross: Callable[[torch.Tensor], torch.Tensor] = lambda values: values
    trainers: dict[PeerId, StageTrainer] = field(default_factory=dict)
    held: dict[Work, torch.Tensor | None] = field(default_factory=dict)
    states: dict[int, StageSnapshot] = field(default_factory=dict)
    _replies: dict[tuple[PeerId, Work], torch.Tensor | None] = field(default_factory=dict)
    _apart: dict[tuple[PeerId, int], UncountedPass] = field(default_factory=dict)
    _sums: dict[tuple[PeerId, frozenset[int]], list[torch.Tensor]] = field(default_factory=dict)

    def _start(self, peer: PeerId, stage: int) -> None:
        self.trainers[peer] = StageTrainer(stage_model(stage), INNER, most_kept=1)
        if stage in self.states:
            self.trainers[peer].restore(self.states[stage])
        super()._start(peer, stage)

    def compute(self, peer: PeerId, work: Work) -> None:
        passes, tokens_BT = self.trainers[peer].passes, tokens_of(self.weights, work.number)
        batch = micro_batch(work.number, step=self.weights, weights=self.weights)
        arrived = self.held[Work(work.number, work.stage - 1, False)] if work.stage else tokens_BT[:, :-1]
        assert arrived is not None
        if not work.is_backward:
            self._replies[peer, work] = passes.forward(batch, arrived)
            passes._kept.clear()
            return
        is_last = work.stage == NUM_STAGES - 1
        grad_BTD = None if is_last else self.held[Work(work.number, work.stage + 1, True)]
        apart = passes.replayed(batch, arrived, grad_BTD, targets_BT=tokens_BT[:, 1:] if is_last else None)
        self._apart[peer, work.number] = apart
        self._replies[peer, work] = apart.grad_BTD

    def received(self, peer: PeerId, work: Work) -> None:
        reply = self._replies[peer, work]
        self.held.setdefault(work, None if reply is None else self.cross(reply))

    def fold(self, peer: PeerId, number: int) -> None:
        super().fold(peer, number)
        self.trainers[peer].passes.fold(self._apart.pop((peer, number)).gradients)

    def forget(self, peer: PeerId) -> None:
        super().forget(peer)
        self.trainers[peer].passes.forget()

    def deliver(self, peer: PeerId, numbers: frozenset[int]) -> None:
        super().deliver(peer, numbers)
        self._sums[peer, numbers] = [p.grad.clone() for p in self.trainers[peer]._parameters]

    def committed(self, order: synced.Commit) -> None:
        super().committed(order)
        for stage, sums in order.sums:
            for peer in [peer for peer, state in self.replicas.items() if state.stage == stage]:
                self.trainers[peer].passes.forget()
                for named in sums:
                    self.trainers[peer].passes.fold(self._sums[named])
        by_stage = {state.stage: self.trainers[peer].gradient_square() for peer, state in self.replicas.items()}
        assert len(by_stage) == NUM_STAGES
        for peer, state in self.replicas.items():
            scale = 1.0 / len(order.counted)
            assert self.trainers[peer].take_step(sum(by_stage.values()), INNER.learning_rate, scale=scale)
            self.states[state.stage] = self.trainers[peer].snapshot()
        for kept in (self.held, self._replies, self._apart, self._sums):
            kept.clear()

    def theta(self) -> torch.Tensor:
        return torch.cat([self.states[stage].theta_N for stage in range(NUM_STAGES)])


def run_one_process(commits: list[synced.Commit], models: Callable[[], torch.nn.Module] = whole_model) -> torch.Tensor:
    """(N,) the same steps with the same micro-batches by the whole model."""
    model = models()
    parameters = parameters_in_order(model, SCHEMA)
    optimizer = make_optimizer(INNER, SCHEMA, parameters)
    for step, commit in enumerate(commits):
        for number in sorted(commit.counted):
            torch.autograd.backward(whole_loss(model, tokens_of(step, number)))
        for (
            parameter
        ) in parameters:  # as the stages do it: what a codec rounds must not depend on how many count in the end
            parameter.grad.div_(len(commit.counted))
        torch.nn.utils.clip_grad_norm_(parameters, INNER.clip_norm)
        optimizer.step(INNER.learning_rate)
        optimizer.zero_grad()
    theta_N = torch.cat([parameter.detach().flatten() for parameter in parameters])
    assert float((theta_N - ANCHOR_N.double()).abs().max()) > 0.01
    return theta_N
