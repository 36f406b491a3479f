"""Notes of the lives of a training process: counts go on over a restart."""

from __future__ import annotations

from peer.training.plan.card_plan import FLOAT32
from peer.training.plan.card_report import CardReport
from peer.training.worker_channel import Progress
from peer.training.worker_notes import WorkerNotes


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
