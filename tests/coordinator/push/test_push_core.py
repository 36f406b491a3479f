from __future__ import annotations

from coordinator.push.push_core import FIRST_AGAIN_S, LONGEST_AGAIN_S, PushState

NONE = PushState("file:///models")


def test_a_new_checkpoint_is_due_at_once_and_the_same_one_not_again() -> None:
    assert not NONE.is_due("", 0.0)
    assert NONE.is_due("00000001-a", 0.0)
    pushed = NONE.succeeded("00000001-a", 1, 70)
    assert not pushed.is_due("00000001-a", 1e9)
    assert pushed.is_due("00000002-b", 0.0)


def test_a_push_that_fails_is_tried_again_later_each_time_up_to_a_limit() -> None:
    state, waits = NONE, []
    for _ in range(12):
        state = state.failed("refused", 100.0)
        waits.append(state.again_s - 100.0)
        assert not state.is_due("x", state.again_s - 0.1)
        assert state.is_due("x", state.again_s)
    assert waits[:3] == [FIRST_AGAIN_S, 2 * FIRST_AGAIN_S, 4 * FIRST_AGAIN_S]
    assert waits[-1] == LONGEST_AGAIN_S
    good = state.succeeded("x", 4, 70)
    assert (good.failures, good.in_a_row, good.reason) == (12, 0, "")
    assert good.failed("refused", 0.0).again_s == FIRST_AGAIN_S


def test_the_state_tells_what_is_there_and_when_it_is_tried_again() -> None:
    shown = NONE.succeeded("00000001-a", 1, 70).failed("refused", 100.0).as_json(105.0)
    assert (shown["index"], shown["reason"], shown["again_in_s"]) == (1, "refused", FIRST_AGAIN_S - 5)
    assert NONE.as_json(0.0)["again_in_s"] is None
