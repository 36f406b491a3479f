"""Inner steps of stages taken together, snapshots that go on elsewhere, and steps that count nowhere."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from averaging.codecs.rows.boundary import BoundaryCodec
from peer.models.decoder import parameters_in_order
from peer.pipeline.stage.stage_trainer import StageTrainer
from peer.training.optimizers.optimizer import make_optimizer
from protocol.errors import LocalProtocolError
from protocol.pipeline.schedule import SCHEDULES, Pass
from protocol.pipeline.stage_machine import Point
from protocol.run.training_sections import InnerSection
from tests.averaging.codecs.rows.rounded import quantised
from tests.peer.lane_world import STEP_TOKENS, LaneWorld, crossed_model, lane_config, run_data_peers, run_lanes
from tests.peer.stage_world import (
    ANCHOR_N,
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

ADAMW = InnerSection(learning_rate=0.01, batch_tokens=16, clip_norm=0.5)
MUON = InnerSection(learning_rate=0.01, batch_tokens=16, clip_norm=0.5, optimizer="muon")


def _trainers(inner: InnerSection, dtype: torch.dtype = torch.float64) -> list[StageTrainer]:
    return [StageTrainer(stage_model(stage, dtype), inner, most_kept=4) for stage in range(STAGES.num_stages)]


def _through(trainers: list[StageTrainer], step: int, share: float = 1.0) -> None:
    batch, tokens_BT = micro_batch(step=step), tokens(step)
    moved: torch.Tensor | None = tokens_BT[:, :-1]
    for trainer in trainers[:-1]:
        moved = trainer.passes.forward(batch, moved)
    trainers[-1].passes.forward(batch, moved, targets_BT=tokens_BT[:, 1:], share=share)
    moved = None
    for trainer in reversed(trainers):
        moved = trainer.passes.backward(batch, moved)


def _step(trainers: list[StageTrainer], step: int) -> None:
    _through(trainers, step)
    square = sum(trainer.gradient_square() for trainer in trainers)
    assert all(trainer.take_step(square, 0.01) for trainer in trainers)


def _whole(trainers: list[StageTrainer]) -> torch.Tensor:
    return torch.cat([trainer.theta() for trainer in trainers])


@pytest.mark.parametrize("inner", [ADAMW, MUON])
def test_stages_that_step_together_move_as_the_whole_model_does_clipped_by_its_whole_norm(inner: InnerSection) -> None:
    trainers, model = _trainers(inner), whole_model()
    parameters = parameters_in_order(model, SCHEMA)
    optimizer = make_optimizer(inner, SCHEMA, parameters)
    for step in range(4):
        _step(trainers, step)
        torch.autograd.backward(whole_loss(model, tokens(step)))
        assert float(torch.nn.utils.clip_grad_norm_(parameters, inner.clip_norm)) > inner.clip_norm
        optimizer.step(0.01)
        optimizer.zero_grad()
    expected_N = torch.cat([parameter.detach().flatten() for parameter in parameters])
    # Muon makes directions orthogonal in float32, whatever the parameters are
    tolerance = 1e-12 if inner is ADAMW else 1e-6
    assert float((_whole(trainers) - expected_N).abs().max()) < tolerance
    assert float((expected_N - ANCHOR_N.double()).abs().max()) > 0.01


@pytest.mark.parametrize("inner", [ADAMW, MUON])
def test_a_snapshot_goes_on_elsewhere_as_if_it_had_been_there_from_the_start(inner: InnerSection) -> None:
    trainers = _trainers(inner, torch.float32)
    _step(trainers, 0)
    snapshots = [snapshot_of(trainer) for trainer in trainers]
    others = _trainers(inner, torch.float32)
    _step(others, 7)
    for trainer, snapshot in zip(others, snapshots, strict=True):
        restore(trainer, snapshot)
    for step in (1, 2):
        _step(trainers, step)
        _step(others, step)
    assert torch.equal(_whole(trainers), _whole(others))


def test_going_back_to_a_snapshot_before_the_first_step_leaves_no_moments() -> None:
    trainers, fresh = _trainers(ADAMW), _trainers(ADAMW)
    snapshots = [snapshot_of(trainer) for trainer in trainers]
    _step(trainers, 0)
    _through(trainers, 1)
    for trainer, snapshot in zip(trainers, snapshots, strict=True):
        restore(trainer, snapshot)
        assert not trainer.passes.kept
    _step(trainers, 2)
    _step(fresh, 2)
    assert torch.equal(_whole(trainers), _whole(fresh))


@pytest.mark.parametrize("square", [math.nan, math.inf])
def test_a_step_whose_norm_is_not_finite_moves_no_stage(square: float) -> None:
    trainers = _trainers(ADAMW)
    _through(trainers, 0)
    assert not any(trainer.take_step(square, 0.01) for trainer in trainers)
    assert torch.equal(_whole(trainers), ANCHOR_N.double())
    assert all(trainer.gradient_square() == 0.0 for trainer in trainers)


def test_an_anchor_is_loaded_with_the_moments_left() -> None:
    trainers = _trainers(ADAMW)
    _step(trainers, 0)
    moments = snapshot_of(trainers[1]).moments
    trainers[1].load(part_of(ANCHOR_N, 1))
    assert torch.equal(trainers[1].theta(), part_of(ANCHOR_N, 1).double())
    assert all(torch.equal(a, b) for a, b in zip(snapshot_of(trainers[1]).moments, moments, strict=True))


def test_a_snapshot_of_another_stage_is_refused() -> None:
    trainers = _trainers(ADAMW)
    _step(trainers, 0)
    with pytest.raises(LocalProtocolError):
        restore(trainers[0], snapshot_of(trainers[1]))
    with pytest.raises(LocalProtocolError, match="at least 0"):
        trainers[0].take_step(-1.0, 0.01)


# --- lanes of such stages, driven by their machines (protocol/pipeline) ---

ROUNDS = 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_lanes_of_three_stages_are_two_data_peers(schedule: str) -> None:
    config = lane_config(schedule=schedule)
    anchor_N = run_lanes([LaneWorld(0, config), LaneWorld(1, config)], ROUNDS)
    expected_N = run_data_peers(2, ROUNDS, config.inner_steps)
    assert float((anchor_N - expected_N).abs().max()) <= 1e-10
    assert float((expected_N - ANCHOR_N.double()).abs().max()) > 0.01


@pytest.mark.parametrize(("forward", "backward"), [("int8", "int8"), ("int4", "bf16")])
def test_lanes_with_codecs_between_stages_are_data_peers_that_quantise_at_the_same_places(
    forward: BoundaryCodec, backward: BoundaryCodec
) -> None:
    config = lane_config(inner_steps=2)
    lanes = [
        LaneWorld(
            number, config, forward=partial(quantised, codec=forward), backward=partial(quantised, codec=backward)
        )
        for number in range(2)
    ]
    anchor_N = run_lanes(lanes, ROUNDS)
    expected_N = run_data_peers(2, ROUNDS, 2, models=lambda: crossed_model(forward, backward))
    assert float((anchor_N - expected_N).abs().max()) <= 1e-10
    assert float((anchor_N - run_data_peers(2, ROUNDS, 2)).abs().max()) > 1e-6


@pytest.mark.parametrize(("stage", "is_backward"), [(0, False), (1, True), (2, False)])
def test_a_member_that_dies_in_mid_step_costs_tokens_and_changes_nothing(stage: int, is_backward: bool) -> None:
    config = lane_config()
    killed = LaneWorld(0, config, spares=1)
    # the fourth step of the second round: the newest whole snapshot is two steps old, and a step is half done
    killed.kill_when = lambda place, order: (
        (place, order.at, order.work) == (stage, Point(1, 3), Pass(1, is_backward)) and not killed.num_killed
    )
    anchor_N = run_lanes([killed, LaneWorld(1, config)], ROUNDS)
    assert killed.num_killed == 1
    assert killed.keeper is not None
    assert killed.keeper.lost_tokens == STEP_TOKENS
    assert float((anchor_N - run_data_peers(2, ROUNDS, config.inner_steps)).abs().max()) <= 1e-10


def test_a_lane_that_dissolves_is_a_data_peer_that_stopped_at_its_last_snapshot() -> None:
    config = lane_config()
    killed = LaneWorld(0, config)
    killed.kill_when = lambda place, order: (place, order.at) == (1, Point(0, 3)) and order.work.is_backward
    anchor_N = run_lanes([killed, LaneWorld(1, config)], 1)
    assert killed.dissolved is not None
    assert killed.dissolved.tokens == 2 * STEP_TOKENS
    expected_N = run_data_peers(2, 1, 5, steps_of=lambda peer, _: 2 if peer == 0 else 5)
    assert float((anchor_N - expected_N).abs().max()) <= 1e-10
