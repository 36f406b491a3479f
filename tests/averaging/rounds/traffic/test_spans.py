from __future__ import annotations

import pytest
import trio
import trio.testing

from averaging.rounds.traffic.spans import Span, SpanRing, nowhere, spanned


async def test_what_a_block_takes_is_recorded_also_where_it_fails(autojump_clock: trio.testing.MockClock) -> None:
    ring, begin_s = SpanRing(), trio.current_time()
    with spanned(ring.record, "send", "fragment-0", "to a"):
        await trio.sleep(2.0)
    with pytest.raises(ValueError, match="broken"), spanned(ring.record, "receive", "fragment-1"):
        raise ValueError("broken")
    assert ring.newest() == [
        Span("send", "fragment-0", begin_s, begin_s + 2.0, "to a"),
        Span("receive", "fragment-1", begin_s + 2.0, begin_s + 2.0),
    ]


async def test_bytes_that_a_block_has_counted_are_recorded_with_its_round() -> None:
    ring = SpanRing()
    with spanned(ring.record, "send", "fragment-0", "to a", 7) as moving:
        moving.num_bytes += 100
        moving.num_bytes += 20
    (span,) = ring.newest()
    assert (span.round_index, span.num_bytes) == (7, 120)


def test_only_the_newest_spans_are_kept() -> None:
    ring = SpanRing(most=3)
    for number in range(5):
        nowhere(Span("compute", "", number, number + 1))
        ring.record(Span("compute", "", number, number + 1))
    assert [span.begin_s for span in ring.newest()] == [2, 3, 4]


def test_many_short_local_steps_push_no_round_out_and_all_come_in_the_order_in_which_they_ended() -> None:
    ring = SpanRing(most=3)
    ring.record(Span("snapshot", "fragment-0", 0.0, 0.5))
    for number in range(10):
        ring.record(Span("compute", "", number, number + 1))
    ring.record(Span("adopt", "fragment-0", 8.0, 9.5))
    assert [span.name for span in ring.newest()] == ["snapshot", "compute", "compute", "adopt", "compute"]
