from __future__ import annotations

from math import inf

import pytest
import trio
import trio.testing

from averaging.rounds.traffic.arrivals import Arrivals
from averaging.rounds.traffic.transfer import ANSWER_WITHIN_S, LEAST_BYTES_PER_S
from protocol.ids import PeerId, Root

Clock = trio.testing.MockClock
RESULT, OTHER = Root(b"r" * 32), Root(b"o" * 32)


async def test_what_comes_is_counted_with_its_time_and_its_senders_are_told_once(autojump_clock: Clock) -> None:
    arrivals = Arrivals()
    assert (arrivals.moved_s, arrivals.moved_bytes, arrivals.bringing()) == (-inf, 0, ())
    for peer, num_bytes in (("b", 3), ("a", 4), ("b", 5)):
        await trio.sleep(1.0)
        arrivals.came(PeerId(peer), memoryview(bytes(num_bytes)))
    assert (arrivals.moved_s, arrivals.moved_bytes) == (trio.current_time(), 12)
    assert [arrivals.bringing(), arrivals.bringing()] == [("a", "b"), ()]


async def test_a_result_is_on_its_way_while_a_stream_brings_it(autojump_clock: Clock) -> None:
    arrivals, began_s = Arrivals(), trio.current_time()
    with arrivals.coming(RESULT) as coming:
        await trio.sleep(1.0)
        assert (arrivals.coming_s(RESULT), arrivals.coming_s(OTHER)) == (began_s, -inf)
        coming.came(1)
        assert arrivals.coming_s(RESULT) == began_s + 1.0
    assert arrivals.coming_s(RESULT) == -inf
    with pytest.raises(ValueError, match="broke"), arrivals.coming(RESULT):
        raise ValueError("broke")
    assert arrivals.coming_s(RESULT) == -inf


async def test_a_second_stream_for_a_result_is_seen_after_the_first_has_ended(autojump_clock: Clock) -> None:
    arrivals = Arrivals()
    first = arrivals.coming(RESULT)
    first.__enter__()
    await trio.sleep(1.0)
    with arrivals.coming(RESULT):
        first.__exit__(None, None, None)
        assert arrivals.coming_s(RESULT) == trio.current_time()


async def test_a_result_that_trickles_is_not_on_its_way_for_ever(autojump_clock: Clock) -> None:
    arrivals, num_bytes = Arrivals(), int(10 * LEAST_BYTES_PER_S)
    with arrivals.coming(RESULT) as coming:
        coming.came(num_bytes)
        for _ in range(29):
            await trio.sleep(1.0)
            coming.came(1)
            assert arrivals.coming_s(RESULT) == trio.current_time()
        assert ANSWER_WITHIN_S + 10.0 == 30.0
        await trio.sleep(2.0)
        coming.came(1)
        assert arrivals.coming_s(RESULT) == -inf
