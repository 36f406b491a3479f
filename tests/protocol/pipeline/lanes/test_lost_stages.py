"""When a run says that it pauses for a stage that nobody holds, and that it does not for one that is away for a moment."""

from __future__ import annotations

from protocol.pipeline.lanes.lost_stages import PAUSED_AFTER_S, empty_since, paused_because


def test_a_stage_without_a_holder_for_a_while_pauses_the_run_in_one_sentence() -> None:
    empty = empty_since({}, (2, 0, 1), 100.0)
    assert empty == {1: 100.0}
    assert paused_because(empty, 100.0 + PAUSED_AFTER_S - 0.1) == ""
    assert paused_because(empty, 100.0 + PAUSED_AFTER_S) == (
        "the run pauses: nobody who is there holds stage 1; it goes on from its newest state that a peer or the host has"
        " as soon as somebody takes what is missing"
    )


def test_who_comes_back_soon_or_takes_the_stage_ends_the_pause() -> None:
    empty = empty_since({1: 100.0}, (2, 1, 1), 130.0)
    assert not empty
    assert paused_because(empty, 130.0) == ""
    assert empty_since(empty, (2, 0, 1), 140.0) == {1: 140.0}, "its time begins anew"


def test_several_lost_stages_are_one_sentence_too() -> None:
    empty = empty_since({0: 0.0}, (0, 1, 0), 5.0)
    assert empty == {0: 0.0, 2: 5.0}
    assert "holds stage 0;" in paused_because(empty, 12.0)
    assert "holds stages 0, 2; it goes on from their newest states" in paused_because(empty, 20.0)
