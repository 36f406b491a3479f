from __future__ import annotations

from dataclasses import fields

from protocol.pipeline.stage_machine import LaneConfig
from protocol.rounds.schedule import liveness_timing as timing
from protocol.rounds.state import RoundConfig

DEFAULTS = {field.name: field.default for field in fields(RoundConfig)}
LANE_DEFAULTS = {field.name: field.default for field in fields(LaneConfig)}


def test_rounds_and_lanes_suspect_by_the_one_number() -> None:
    assert DEFAULTS["suspect_after_s"] == timing.SUSPECT_AFTER_S
    assert LANE_DEFAULTS["suspect_after_s"] == timing.LANE_SUSPECT_AFTER_S


def test_several_signs_of_life_have_to_be_missed() -> None:
    assert 4 * DEFAULTS["ping_s"] <= timing.SUSPECT_AFTER_S


def test_a_stream_stands_still_for_longer_than_a_suspicion_takes() -> None:
    assert timing.STALLED_STREAM_S > timing.SUSPECT_AFTER_S


def test_a_take_over_waits_for_voters_that_wait_for_a_suspicion_first() -> None:
    assert DEFAULTS["promise_within_s"] == timing.PROMISE_WITHIN_S > timing.SUSPECT_AFTER_S
