"""A stage waits for its last round once the run is over, and not for ever."""

from __future__ import annotations

from protocol.pipeline.last_round import LAST_ROUND_WITHIN_S, Ending, look


def test_while_tokens_are_missing_the_stage_goes_on() -> None:
    for has_last_round in (True, False):
        assert not look(Ending(), is_run_over=False, has_last_round=has_last_round, now_s=1e6).is_done


def test_with_its_last_round_the_stage_is_done_at_once() -> None:
    done = look(Ending(), is_run_over=True, has_last_round=True, now_s=5.0)
    assert (done.is_done, done.missing) == (True, "")


def test_a_last_round_that_does_not_come_is_given_up_and_said() -> None:
    first = look(Ending(), is_run_over=True, has_last_round=False, now_s=100.0)
    assert (first.is_done, first.state) == (False, Ending(100.0))
    late = look(first.state, is_run_over=True, has_last_round=False, now_s=100.0 + LAST_ROUND_WITHIN_S)
    assert not late.is_done
    given_up = look(late.state, is_run_over=True, has_last_round=False, now_s=100.1 + LAST_ROUND_WITHIN_S)
    assert given_up.is_done
    assert given_up.missing.startswith("the last round of this stage did not come within 20 s")


def test_a_run_that_goes_on_on_another_lineage_begins_the_wait_anew() -> None:
    first = look(Ending(), is_run_over=True, has_last_round=False, now_s=100.0)
    again = look(first.state, is_run_over=False, has_last_round=False, now_s=110.0)
    assert look(again.state, is_run_over=True, has_last_round=False, now_s=125.0).state == Ending(125.0)
