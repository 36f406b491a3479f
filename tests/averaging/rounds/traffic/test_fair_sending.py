from __future__ import annotations

import pytest
import trio
import trio.testing

from averaging.network.seams.interfaces import Stream
from averaging.rounds.traffic.fair_sending import MOST_AHEAD, MOST_HELD_BACK_S, FairSending, send_evenly

Clock = trio.testing.MockClock

CHUNKS = [bytes([n]) * 1000 for n in range(100)]
DATA = b"".join(CHUNKS)


class Line(Stream):
    """Takes so many bytes a second."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.frames: list[bytes] = []
        self.ended_s = 0.0

    async def send_frame(self, data: bytes | memoryview, head: bytes = b"") -> None:
        frame = b"".join((head, data))
        await trio.sleep(len(frame) / self.bytes_per_s)
        self.frames.append(frame)
        self.ended_s = trio.current_time()


async def _send(lines: list[Line], sending: FairSending) -> None:
    async with trio.open_nursery() as nursery:
        for line in lines:
            nursery.start_soon(send_evenly, line, range(100), DATA, CHUNKS, sending)


def test_a_stream_that_is_ahead_holds_back_as_long_as_its_last_frame_took_up_to_a_limit() -> None:
    sending = FairSending()
    sending.begin("fast", 1000)
    sending.begin("slow", 1000)
    assert sending.sent("fast", 150, 0.02) == 0.0, "not further ahead than one may be"
    assert sending.sent("fast", 50, 0.02) == 0.02
    assert sending.sent("fast", 50, 3.0) == MOST_HELD_BACK_S
    assert sending.sent("slow", 220, 3.0) == 0.0, "who is behind goes on"
    assert sending.sent("fast", 10, 0.02) == 0.0


def test_streams_are_compared_by_their_share_and_not_by_their_bytes() -> None:
    sending = FairSending()
    sending.begin("large", 1_000_000)
    sending.begin("small", 100)
    assert sending.sent("large", 140_000, 0.1) == 0.0
    assert sending.sent("small", 50, 0.1) > 0.0
    assert MOST_AHEAD == 0.15


def test_nobody_waits_for_a_stream_that_ended_or_has_nothing_to_carry() -> None:
    sending = FairSending()
    sending.begin("gone", 1000)
    sending.begin("empty", 0)
    sending.begin("left", 1000)
    sending.end("gone")
    assert sending.sent("left", 900, 0.1) == 0.0
    assert sending.sent("empty", 0, 0.1) == 0.0
    sending.end("empty")


async def test_all_chunks_arrive_in_their_order(autojump_clock: Clock) -> None:
    line = Line(1e6)
    await send_evenly(line, range(100), DATA, CHUNKS, FairSending())
    assert b"".join(line.frames) == DATA
    assert len(line.frames) < len(CHUNKS), "several a frame"


async def test_a_frame_begins_with_the_head_of_its_run(autojump_clock: Clock) -> None:
    line, numbers = Line(1e6), [*range(3, 9), 50, *range(98, 100)]
    await send_evenly(line, numbers, DATA, CHUNKS, FairSending(), lambda run: bytes([run.start]))
    sent = [(frame[0], frame[1:]) for frame in line.frames]
    assert b"".join(chunks for _, chunks in sent) == b"".join(CHUNKS[number] for number in numbers)
    assert all(chunks.startswith(CHUNKS[first]) for first, chunks in sent)
    assert {3, 50, 98} <= {first for first, _ in sent}


async def test_a_fast_stream_beside_a_slow_one_goes_at_half_its_speed_at_least(autojump_clock: Clock) -> None:
    fast, slow = Line(100_000.0), Line(10_000.0)
    await _send([fast, slow], FairSending())
    assert 1.0 < fast.ended_s < 2.1, "1 s alone"
    assert 9.99 < slow.ended_s < 10.1, "the slow one never waits"


async def test_who_is_told_hears_of_chunks_when_they_have_left_and_a_broken_stream_is_not_waited_for(
    autojump_clock: Clock,
) -> None:
    class Broken(Line):
        async def send_frame(self, data: bytes | memoryview, head: bytes = b"") -> None:
            await super().send_frame(data, head)
            if len(self.frames) == 3:
                raise OSError("gone")

    sending, left, line = FairSending(), list[int](), Broken(1e6)
    numbers = [1, 2, 3, 7, 8, 9, 10, 50]
    with pytest.raises(OSError, match="gone"):
        await send_evenly(line, numbers, DATA, CHUNKS, sending, left=left.extend)
    assert left == numbers[: len(left)]
    assert 0 < len(left) < len(numbers)
    sending.begin("other", 100)
    assert sending.sent("other", 100, 1.0) == 0.0
