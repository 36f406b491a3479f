from __future__ import annotations

import pytest

from coordinator.helper.helper_core import (
    FIRST_PAUSE_S,
    KEPT_FOR_S,
    MAX_PAUSE_S,
    STEADY_S,
    HelperPlan,
    helper_arguments,
    needs_helper,
)


@pytest.mark.parametrize(
    ("are_hidden", "is_needed"),
    [
        ([], False),
        ([True], False),
        ([True, True], True),
        ([True, False], False),
        ([True, True, False], True),
        ([True, True, False, False], False),
        ([False, False, False], False),
    ],
)
def test_a_helper_is_needed_where_fewer_than_half_of_several_peers_can_be_connected_to(
    are_hidden: list[bool], is_needed: bool
) -> None:
    assert needs_helper(are_hidden) is is_needed


def test_a_helper_runs_from_the_first_need_until_long_after_the_last() -> None:
    plan = HelperPlan().after_look(is_needed=False, now_s=5.0)
    assert not plan.is_to_run(5.0)
    plan = plan.after_look(is_needed=True, now_s=10.0)
    assert plan.is_to_run(10.0)
    plan = plan.after_look(is_needed=False, now_s=20.0)
    assert plan.is_to_run(10.0 + KEPT_FOR_S)
    assert not plan.is_to_run(11.0 + KEPT_FOR_S)


def test_a_helper_that_keeps_ending_is_started_ever_less_often_until_one_lasts() -> None:
    plan, now_s, pauses = HelperPlan(), 0.0, []
    for _ in range(9):
        plan = plan.after_look(is_needed=True, now_s=now_s).after_end(ran_s=1.0, now_s=now_s)
        pauses.append(plan.not_before_s - now_s)
        assert not plan.is_to_run(now_s)
        now_s = plan.not_before_s
        assert plan.is_to_run(now_s)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == MAX_PAUSE_S
    assert plan.after_end(ran_s=STEADY_S, now_s=now_s).not_before_s == now_s + FIRST_PAUSE_S


def test_a_helper_trains_nothing_and_uses_an_invite_only_the_first_time() -> None:
    place = {"listen_host": "0.0.0.0", "listen_port": 4603}
    first = helper_arguments("/run/helper", "potluck1:x", announce_host="host.example", **place)  # type: ignore[arg-type]
    assert first[:3] == ("join", "potluck1:x", "--reduce-only")
    assert first[-2:] == ("--announce-host", "host.example")
    again = helper_arguments("/run/helper", "", announce_host="", **place)  # type: ignore[arg-type]
    assert again[:2] == ("join", "--reduce-only")
    assert "--announce-host" not in again
