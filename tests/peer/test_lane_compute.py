"""What one stage of a lane holds of micro-batches, and when it is freed."""

from __future__ import annotations

import pytest
import torch

from averaging.codecs.boundary import encode_boundary
from peer.lane_compute import ComputeTools, LaneShape, LaneWork
from peer.stage_trainer import StageTrainer
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


def _arrives(work: LaneWork, pass_: Pass, at: Point = START) -> None:
    boundary = FORM.boundary(0, 1, 0, at, pass_)
    work.arrived(encode_boundary(torch.ones(*SHAPE, MODEL.dim, dtype=torch.float64), boundary), 0, at, pass_)


def _middle() -> LaneWork:
    work = LaneWork(TOOLS, 0, 1)
    work.open()
    return work


def test_of_a_step_nothing_is_held_once_its_micro_batches_have_gone_back() -> None:
    work, numbers = _middle(), range(FORM.config.num_micro_batches)
    for number in numbers:
        _arrives(work, Pass(number, False))
        work.run_pass(0, START, Pass(number, False))
    assert work.in_flight == frozenset(numbers)
    for number in numbers:
        _arrives(work, Pass(number, True))
        work.run_pass(0, START, Pass(number, True))
        assert work.in_flight == frozenset(numbers[number + 1 :])
    assert work.take_step(START, work.square())
    assert not work.in_flight


@pytest.mark.parametrize("is_run", [False, True])
def test_back_at_a_snapshot_what_was_in_flight_is_freed(is_run: bool) -> None:
    work = _middle()
    snapshot = work.snapshot()
    _arrives(work, Pass(0, False))
    if is_run:
        work.run_pass(0, START, Pass(0, False))
    assert work.in_flight == {0}
    work.restore(snapshot)
    assert not work.in_flight
