"""A stage's capacity follows from the time that it computes, not from the time that it waits."""

from __future__ import annotations

import pytest

from peer.pipeline.stage.stage_throughput import KEPT_STEPS, StageThroughput
from protocol.pipeline.schedule import Pass


def _step(pace: StageThroughput, pass_s: float) -> None:
    for number in range(4):
        pace.worked(Pass(number, False), pass_s)
        pace.worked(Pass(number, True), 2 * pass_s)
    pace.worked(None, 4 * pass_s)


def test_the_tokens_of_a_step_by_the_time_of_its_passes_and_of_its_end() -> None:
    pace = StageThroughput(4, 1024)
    assert pace.tokens_per_s == 0.0
    pace.worked(Pass(0, False), 1.0)
    assert pace.tokens_per_s == 0.0, "nothing was passed back yet"
    pace = StageThroughput(4, 1024)
    _step(pace, 0.5)
    assert pace.tokens_per_s == pytest.approx(1024 / 8.0)


def test_measuring_held_out_text_is_no_work_on_tokens_and_old_steps_are_forgotten() -> None:
    pace = StageThroughput(4, 1024)
    _step(pace, 50.0)
    for _ in range(KEPT_STEPS):
        _step(pace, 0.5)
        pace.worked(Pass(4, False), 1000.0)
    assert pace.tokens_per_s == pytest.approx(1024 / 8.0)


def test_what_a_stage_computed_until_its_first_pass_was_done_is_told_once_and_for_all() -> None:
    pace = StageThroughput(4, 1024)
    pace.worked(None, 3.0)
    assert pace.first_pass_s is None
    pace.worked(Pass(0, False), 2.0)
    assert pace.first_pass_s == 5.0
    _step(pace, 0.5)
    assert pace.first_pass_s == 5.0
