from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from averaging.network.patience import TURN_S, patient_for


@pytest.mark.parametrize("seconds", [0.05, 2.5])
async def test_patience_ends_after_its_time(autojump_clock: trio.testing.MockClock, seconds: float) -> None:
    began_s = trio.current_time()
    async with patient_for(seconds) as scope:
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() - began_s == pytest.approx(seconds, abs=TURN_S)


async def test_who_is_done_before_is_let_go_at_once_and_an_error_leaves_as_itself(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with patient_for(5.0) as scope:
        await trio.sleep(1.0)
    assert not scope.cancelled_caught
    with pytest.raises(OSError, match="broken"):
        async with patient_for(5.0):
            raise OSError("broken")
    assert trio.current_time() < 5.0


async def test_a_deadline_of_its_own_counts_instead(autojump_clock: trio.testing.MockClock) -> None:
    began_s = trio.current_time()
    async with patient_for(0.5) as scope:
        scope.deadline = began_s + 7.0
        await trio.sleep_forever()
    assert trio.current_time() - began_s == pytest.approx(7.0)


async def test_time_in_which_our_own_loop_stood_still_uses_up_little() -> None:
    async with patient_for(3 * TURN_S) as scope:
        await trio.sleep(0.0)
        threading.Event().wait(4 * TURN_S)  # the loop stands still
        await trio.sleep(TURN_S / 2)
    assert not scope.cancelled_caught
