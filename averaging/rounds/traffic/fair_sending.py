"""Streams that go out beside one another keep together: who is ahead lets the others catch up.

Everybody waits for the reducer that closes its slice last, and then for its result. So each of the streams that share a line is to get
what it needs to end with the others. Left to themselves they do not: one that lost packets at its start got a fifteenth of the line
until the others had ended, while its receiver's line was empty. Four members at 100 Mbit/s, 25M int8 values: 5.5 s without this and
without contributions going first (`Exchange`), 4.15 s with both. Since lines are paced (`network/line_pace.py`) streams keep together
by themselves, mostly: this is for those that are not paced yet, or go another way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from typing import Final

import trio

from averaging.network.seams.interfaces import Stream
from averaging.rounds.traffic.batches import FramePace, runs_of

MOST_AHEAD: Final = 0.15
"""A stream that has carried more of what it is to carry than the one furthest behind, by this share of it, holds back. With 5% paced
streams held back, too, and never caught up: four members at 100 Mbit/s took 0.1 s longer for each half of a round.
"""

MOST_HELD_BACK_S: Final = 0.05
"""At each frame. A frame that was long on its way says little of how long it should wait: with no limit lines were idle meanwhile."""


Ready = Callable[[range], Awaitable[bool]]
"""Waits until these chunks can be sent; False where nothing more will be."""


async def is_ready(run: range) -> bool:
    """Of chunks that are all there."""
    return True


class EvenSending:
    """How far each stream is, and how long one that is ahead holds back before its next frame.

    It holds back for as long as its last frame took to leave, so it goes on at half its speed at least: where the one behind is slow
    for a reason of its own, such as a thin line at its receiver, the others lose no more than that.
    """

    def __init__(self) -> None:
        self._wanted_bytes: dict[object, int] = {}
        self._sent_bytes: dict[object, int] = {}

    def begin(self, stream: object, num_bytes: int) -> None:
        """A stream is to carry so many bytes; one that has nothing to carry is nobody to wait for."""
        if num_bytes > 0:
            self._wanted_bytes[stream], self._sent_bytes[stream] = num_bytes, 0

    def end(self, stream: object) -> None:
        """It has carried them, or will not."""
        self._wanted_bytes.pop(stream, None)
        self._sent_bytes.pop(stream, None)

    def sent(self, stream: object, num_bytes: int, took_s: float) -> float:
        """A frame of so many bytes has left, which took so long; returns the seconds to wait before the next one."""
        if stream not in self._wanted_bytes:
            return 0.0
        self._sent_bytes[stream] += num_bytes
        behind = min(self._share(each) for each in self._wanted_bytes)
        return min(took_s, MOST_HELD_BACK_S) if self._share(stream) - behind > MOST_AHEAD else 0.0

    def _share(self, stream: object) -> float:
        return self._sent_bytes[stream] / self._wanted_bytes[stream]


def no_head(run: range) -> bytes:
    """Of frames that are chunks and nothing else."""
    return b""


async def send_evenly(
    stream: Stream,
    numbers: Sequence[int],
    data: bytes | memoryview,
    chunks: Sequence[bytes | memoryview],
    even: EvenSending,
    head_of: Callable[[range], bytes] = no_head,
    left: Callable[[range], None] = lambda run: None,
    ready: Ready = is_ready,
) -> None:
    """Send these chunks, several in a frame, together with the other streams of `even`.

    Args:
        numbers: of the chunks, ascending; places in `chunks`.
        data, chunks: all chunks, one behind the other, and each of them.
        head_of: what goes before chunks that follow one another in their frame.
        left: told of chunks that have left.
        ready: asked before each frame.

    Raises:
        TransportError: the stream broke.
    """
    view, begins = memoryview(data), list(accumulate(map(len, chunks), initial=0))
    wanted_bytes = sum(len(chunks[number]) for number in numbers)
    pace = FramePace(trio.current_time(), wanted_bytes)
    even.begin(stream, wanted_bytes)
    try:
        for run in runs_of(numbers, chunks, lambda: pace.max_bytes(trio.current_time())):
            asked_s = trio.current_time()
            if not await ready(run):
                return
            pace.waited(trio.current_time() - asked_s)
            part, began_s = view[begins[run.start] : begins[run.stop]], trio.current_time()
            await stream.send_frame(part, head_of(run))
            pace.sent(len(part))
            left(run)
            ahead_s = even.sent(stream, len(part), trio.current_time() - began_s)
            if ahead_s:  # to send gives others their turn
                await trio.sleep(ahead_s)
    finally:
        even.end(stream)
