"""Notes of the lives of a training process: counts go on over a restart."""

from __future__ import annotations

import math

from peer.training.plan.card_plan import FLOAT32
from peer.training.plan.card_report import CardReport
from peer.training.worker_channel import Progress
from peer.training.worker_notes import Speed, WorkerNotes


def _progress(*source_tokens: int, skipped_steps: int = 0) -> Progress:
    return Progress(
        step=1,
        tokens_ready=0,
        tokens_trained=0,
        loss_nats=None,
        micro_batch=1,
        skipped_steps=skipped_steps,
        source_tokens=source_tokens,
    )


def test_tokens_of_each_source_and_skipped_steps_add_up_over_lives() -> None:
    notes = WorkerNotes()
    notes.take(_progress(3, 1, skipped_steps=1))
    notes.take(_progress(30, 10, skipped_steps=2))
    notes.died(None)
    notes.take(_progress())
    assert notes.source_tokens == (30, 10), "a new life has not told yet"
    notes.take(_progress(5, 5, skipped_steps=1))
    report = notes.added_to(CardReport(plan=FLOAT32, kind="cpu"))
    assert report is not None
    assert (report.source_tokens, report.skipped_steps) == ((35, 15), 3)


def test_speed_and_slowest_step_are_those_of_steps_also_where_a_command_is_obeyed_between_two_of_them() -> None:
    speed = Speed()
    assert (speed.tokens_per_s(0.0), speed.slowest_s) == (0.0, math.inf)
    for now_s, tokens in ((0.0, 0), (20.0, 2000), (21.0, 2000), (22.0, 2000), (40.0, 4000), (41.0, 4000)):
        speed.note(now_s, tokens)
        speed.tokens_per_s(now_s)
    assert speed.tokens_per_s(41.0) == 2000 / 21.0
    assert speed.slowest_s == 20.0


def test_speed_falls_while_no_step_ends() -> None:
    speed = Speed()
    for now_s in range(30):
        speed.note(float(now_s), 100 * now_s)
        assert now_s == 0 or speed.tokens_per_s(float(now_s)) == 100.0
    assert 0.0 < speed.tokens_per_s(38.0) < 100.0
    assert 0.0 < speed.tokens_per_s(1000.0) < 1.0
