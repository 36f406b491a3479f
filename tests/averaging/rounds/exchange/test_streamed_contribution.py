from __future__ import annotations

import trio
import trio.testing

from averaging.rounds.exchange.streamed_contribution import GrowingContribution


async def test_chunks_are_waited_for_until_all_of_them_are_encoded(autojump_clock: trio.testing.MockClock) -> None:
    growing = GrowingContribution(memoryview(b"x" * 6), [memoryview(b"x")] * 6)
    found: list[tuple[bool, float]] = []

    async def wait() -> None:
        found.append((await growing.wait(range(1, 4)), trio.current_time()))

    begin_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for number, runs in enumerate(([range(2)], [range(4, 6), range(3, 4)], [range(2, 3)])):
            await trio.sleep_until(begin_s + number + 1.0)
            assert found == []
            growing.grew(runs)
    assert found == [(True, begin_s + 3.0)]
    assert await growing.wait(range(6))


async def test_who_waits_for_chunks_that_will_never_be_encoded_hears_so(autojump_clock: trio.testing.MockClock) -> None:
    growing = GrowingContribution(memoryview(b"x" * 2), [memoryview(b"x")] * 2)
    growing.grew([range(1)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.testing.wait_all_tasks_blocked)
        growing.give_up()
        assert not await growing.wait(range(1, 2))
        assert not await growing.wait(range(1)), "what was encoded is not offered either"
