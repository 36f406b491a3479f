"""What a replica of synced steps holds of micro-batches, and when it is freed."""

from __future__ import annotations

import pytest
import torch

from averaging.codecs.boundary import encode_boundary
from peer.lane_compute import ComputeTools, LaneShape
from peer.stage_trainer import StageTrainer
from peer.synced_compute import SyncedCompute
from protocol.pipeline.lane_stage import Point
from protocol.pipeline.schedule import Pass
from tests.peer.lane_swarm import SHAPE
from tests.peer.lane_world import INNER, lane_config, tokens_of
from tests.peer.stage_world import ANCHOR_N, MODEL, RUN, STAGES, part_of, stage_model

FORM = LaneShape(RUN, lane_config(), STAGES, SHAPE, "fp64", "fp64", torch.float64)
START, NEXT = Point(0, 0), Point(0, 1)


def _trainer(stage: int) -> StageTrainer:
    trainer = StageTrainer(stage_model(stage), INNER, most_kept=FORM.config.num_micro_batches)
    trainer.load(part_of(ANCHOR_N.double(), stage))
    return trainer


TOOLS = ComputeTools(FORM, _trainer, lambda _, at, number: tokens_of(0, at, number), lambda at: INNER.learning_rate)


def _done(*numbers: int) -> SyncedCompute:
    """The middle stage after the backward passes of these."""
    work = SyncedCompute(TOOLS, 0, 1)
    work.open()
    for number in numbers:
        values_BTD = torch.ones(*SHAPE, MODEL.dim, dtype=torch.float64)
        forward, backward = (
            encode_boundary(values_BTD, FORM.boundary(0, 1, 0, START, Pass(number, way))) for way in (False, True)
        )
        work.serve(START, Pass(number, True), forward, backward)
    return work


def test_gradients_lie_apart_until_they_are_granted_or_dropped() -> None:
    work = _done(0, 1)
    assert work.in_flight == {0, 1}
    work.grant(0)
    assert work.in_flight == {1}
    work.drop(1)
    assert not work.in_flight


def test_whatever_lies_apart_is_freed_when_the_sums_are_added_up() -> None:
    work = _done(0, 1)
    work.grant(0)
    square = work.total([work.own_sum()])
    assert not work.in_flight
    assert work.take_mean_step(START, square, 1)


@pytest.mark.parametrize("how", ["forgotten", "without any that counts"])
def test_whatever_lies_apart_is_freed_where_nothing_of_the_step_counts(how: str) -> None:
    work = _done(0)
    if how == "forgotten":
        work.forget()
    else:
        assert not work.take_mean_step(START, 0.0, 0)
    assert not work.in_flight
