"""A stage's capacity follows from the time that it computes, not from the time that it waits."""

from __future__ import annotations

import pytest

from peer.pipeline.stage.stage_throughput import KEPT_STEPS, StageThroughput
from protocol.pipeline.schedule import Pass


def _step(throughput: StageThroughput, pass_s: float) -> None:
    for number in range(4):
        throughput.worked(Pass(number, False), pass_s)
        throughput.worked(Pass(number, True), 2 * pass_s)
    throughput.worked(None, 4 * pass_s)


def test_the_tokens_of_a_step_by_the_time_of_its_passes_and_of_its_end() -> None:
    throughput = StageThroughput(4, 1024)
    assert throughput.tokens_per_s == 0.0
    throughput.worked(Pass(0, False), 1.0)
    assert throughput.tokens_per_s == 0.0, "nothing was passed back yet"
    throughput = StageThroughput(4, 1024)
    _step(throughput, 0.5)
    assert throughput.tokens_per_s == pytest.approx(1024 / 8.0)


def test_measuring_held_out_text_is_no_work_on_tokens_and_old_steps_are_forgotten() -> None:
    throughput = StageThroughput(4, 1024)
    _step(throughput, 50.0)
    for _ in range(KEPT_STEPS):
        _step(throughput, 0.5)
        throughput.worked(Pass(4, False), 1000.0)
    assert throughput.tokens_per_s == pytest.approx(1024 / 8.0)


def test_what_a_stage_computed_until_its_first_pass_was_done_is_told_once_and_for_all() -> None:
    throughput = StageThroughput(4, 1024)
    throughput.worked(None, 3.0)
    assert throughput.first_pass_s is None
    throughput.worked(Pass(0, False), 2.0)
    assert throughput.first_pass_s == 5.0
    _step(throughput, 0.5)
    assert throughput.first_pass_s == 5.0
