"""A computation of a stage, with float64 at its boundaries, for tests of its memory."""

from __future__ import annotations

from typing import Final

import torch

from averaging.codecs.rows.boundary import encode_boundary
from peer.pipeline.stage.lane_compute import ComputeContext, LaneShape
from peer.pipeline.stage.stage_trainer import StageTrainer
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from tests.peer.lane_swarm import SHAPE
from tests.peer.lane_world import INNER, lane_config, tokens_of
from tests.peer.stage_world import ANCHOR_N, MODEL, RUN, STAGES, part_of, stage_model

FORM: Final = LaneShape(RUN, lane_config(), STAGES, SHAPE, "fp64", "fp64", torch.float64)
START: Final = Point(0, 0)


def _trainer(stage: int) -> StageTrainer:
    trainer = StageTrainer(stage_model(stage), INNER, most_kept=FORM.config.num_micro_batches)
    trainer.load(part_of(ANCHOR_N.double(), stage))
    return trainer


TOOLS: Final = ComputeContext(
    FORM, _trainer, lambda _, at, number: tokens_of(0, at, number), lambda at: INNER.learning_rate
)


def ones_at(at: Point, pass_: Pass) -> bytes:
    """A message of ones to the middle stage, as its neighbours send it."""
    values_BTD = torch.ones(*SHAPE, MODEL.dim, dtype=torch.float64)
    return encode_boundary(values_BTD, FORM.boundary(0, 1, 0, at, pass_))
