"""A stage reads the same text whether the next micro-batch is read beforehand or not, also where its lane goes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from peer.pipeline.stage.stage_texts import StageTexts, TextPlace
from protocol.pipeline.stage_machine import Point
from tests.peer.worker_world import stage_plan

CPU = torch.device("cpu")


def _places(folder: Path) -> list[TextPlace]:
    """Those of a round and of the next one's begin, with one that comes again."""
    lanes = stage_plan(folder, 0).lanes
    place, found = TextPlace(7, Point(0, 0), 0), list[TextPlace]()
    while place.at.round < 2:
        found.append(place)
        place = place.next(lanes)
    return [*found[:2], found[0], *found[1:]]


def test_the_next_micro_batch_is_the_one_that_the_lane_needs_next(tmp_path: Path) -> None:
    lanes = stage_plan(tmp_path, 0).lanes
    last = lanes.num_micro_batches - 1
    measured = lanes.num_micro_batches + lanes.heldout_passes - 1
    at = Point(3, 0)
    assert TextPlace(7, at, 0).next(lanes) == TextPlace(7, at, 1)
    assert TextPlace(7, at, last).next(lanes) == TextPlace(7, at, last + 1), "the first step measures, too"
    assert TextPlace(7, at, measured).next(lanes) == TextPlace(7, Point(3, 1), 0)
    assert TextPlace(7, Point(3, lanes.inner_steps - 1), last).next(lanes) == TextPlace(7, Point(4, 0), 0)


@pytest.mark.parametrize("stage", [0, 1])
def test_text_that_is_read_ahead_is_that_of_its_place(stage: int, tmp_path: Path) -> None:
    plan = stage_plan(tmp_path, stage)
    plain, ahead = (StageTexts(plan, CPU, is_ahead=is_ahead) for is_ahead in (False, True))
    seen = set()
    for place in _places(tmp_path):
        tokens_BT = ahead.tokens_of(place.lane, place.at, place.number)
        assert torch.equal(tokens_BT, plain.tokens_of(place.lane, place.at, place.number))
        targets = ahead.targets_of(place.lane, place.at, place.number)
        assert torch.equal(targets.targets_BT, tokens_BT[:, 1:])
        seen.add(tokens_BT.numpy().tobytes())
    assert len(seen) > plan.lanes.inner_steps * plan.lanes.num_micro_batches
