"""A stage waits for its last round once the run is over, and not for ever."""

from __future__ import annotations

from protocol.pipeline.lanes.last_round import (
    LAST_ROUND_WITHIN_S,
    SPINE_TOLD_WITHIN_S,
    Ending,
    decide,
    is_after_the_end,
)


def test_while_tokens_are_missing_the_stage_goes_on() -> None:
    for has_last_round in (True, False):
        assert not decide(Ending(), is_run_over=False, has_last_round=has_last_round, now_s=1e6).is_done


def test_with_its_last_round_the_stage_is_done_at_once() -> None:
    done = decide(Ending(), is_run_over=True, has_last_round=True, now_s=5.0)
    assert (done.is_done, done.missing) == (True, "")


def test_a_last_round_that_does_not_come_is_given_up_and_said() -> None:
    first = decide(Ending(), is_run_over=True, has_last_round=False, now_s=100.0)
    assert (first.is_done, first.state) == (False, Ending(100.0))
    late = decide(first.state, is_run_over=True, has_last_round=False, now_s=100.0 + LAST_ROUND_WITHIN_S)
    assert not late.is_done
    given_up = decide(late.state, is_run_over=True, has_last_round=False, now_s=100.1 + LAST_ROUND_WITHIN_S)
    assert given_up.is_done
    assert given_up.missing.startswith("the last round of this stage did not come within 20 s")


def test_a_run_that_goes_on_on_another_lineage_begins_the_wait_anew() -> None:
    first = decide(Ending(), is_run_over=True, has_last_round=False, now_s=100.0)
    again = decide(first.state, is_run_over=False, has_last_round=False, now_s=110.0)
    assert decide(again.state, is_run_over=True, has_last_round=False, now_s=125.0).state == Ending(125.0)


def _after(own_tokens: int, spine: tuple[int, int] | None, waited_s: float = 0.0) -> bool | None:
    """Of a run of 1000 tokens, before its fifth round."""
    return is_after_the_end(own_tokens=own_tokens, total_tokens=1000, spine=spine, round_=5, waited_s=waited_s)


def test_a_stage_whose_own_commits_lack_tokens_brings_its_round_whatever_the_first_stage_has() -> None:
    assert _after(900, None) is False
    assert _after(900, (5, 1000)) is False


def test_a_round_after_the_first_stages_commit_with_all_tokens_is_brought_nowhere() -> None:
    assert _after(1000, (5, 1000)) is True
    assert _after(1000, (5, 999)) is False


def test_the_first_stages_commit_is_waited_for_and_not_for_ever() -> None:
    for spine in (None, (4, 900)):
        assert _after(1000, spine) is None
        assert _after(1000, spine, SPINE_TOLD_WITHIN_S) is False
    assert _after(1000, (4, 1000), SPINE_TOLD_WITHIN_S) is True
