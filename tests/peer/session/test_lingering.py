from __future__ import annotations

import pytest
import trio
import trio.testing

from peer.session.lingering import LINGER_S, LOOK_EVERY_S, linger

Clock = trio.testing.MockClock


async def _nobody_says_so() -> bool:
    return False


async def test_a_peer_goes_as_soon_as_everybody_has_all(autojump_clock: Clock) -> None:
    async def has_all() -> bool:
        return trio.current_time() - begun_s >= 5.0

    begun_s = trio.current_time()
    await linger(has_all, lambda: 0)
    assert 5.0 <= trio.current_time() - begun_s <= 5.0 + LOOK_EVERY_S


async def test_a_peer_of_which_nobody_takes_anything_goes_after_a_while(autojump_clock: Clock) -> None:
    begun_s = trio.current_time()
    await linger(_nobody_says_so, lambda: 1000)
    assert trio.current_time() - begun_s == LINGER_S


async def test_a_peer_stays_while_the_last_checkpoint_is_taken_of_it_however_slowly(autojump_clock: Clock) -> None:
    taken_until_s = 10 * LINGER_S

    def given() -> int:
        return int(min(trio.current_time() - begun_s, taken_until_s) // 10)

    begun_s = trio.current_time()
    await linger(_nobody_says_so, given)
    assert abs(trio.current_time() - begun_s - (taken_until_s + LINGER_S)) <= 1.0


async def test_nobody_keeps_a_peer_for_good(monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock) -> None:
    monkeypatch.setattr("peer.session.lingering.MOST_LINGER_S", 4 * LINGER_S)
    begun_s = trio.current_time()
    await linger(_nobody_says_so, lambda: int(trio.current_time()))
    assert trio.current_time() - begun_s == 4 * LINGER_S


async def test_a_host_that_does_not_answer_keeps_nobody(autojump_clock: Clock) -> None:
    begun_s = trio.current_time()

    async def silent() -> bool:
        await trio.sleep_forever()
        return False

    await linger(silent, lambda: 0)
    assert trio.current_time() - begun_s == LINGER_S
