"""Concurrent outgoing streams keep together: a stream that is ahead lets the others catch up.

Everybody waits for the reducer that closes its slice last, and then for its result. So each stream on a shared line should end at
the same time. Without this, a stream that loses packets at its start stays far behind until the others have ended. Paced lines
(`network/pacing/line_rate.py`) mostly keep streams together; this is for streams that are not paced yet, or take another
way. Measured; see tests/benchmarks/LOG.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from typing import Final

import trio

from averaging.network.seams.interfaces import Stream
from averaging.rounds.traffic.batches import FrameSizer, runs_of

MOST_AHEAD: Final = 0.15
"""A stream holds back if its share of sent bytes is ahead of the slowest stream's by more than this. A smaller value also holds
back paced streams, which then never catch up; measured; see tests/benchmarks/LOG.md.
"""

MOST_HELD_BACK_S: Final = 0.05
"""The longest pause at each frame. A frame that took long says little of how long the next should wait; without a limit lines
stay idle.
"""


Ready = Callable[[range], Awaitable[bool]]
"""Waits until these chunks can be sent; False if no more will be sent."""


async def is_ready(run: range) -> bool:
    """For chunks that are all there."""
    return True


class FairSending:
    """The progress of each stream, and how long one that is ahead waits before its next frame.

    It waits as long as its last frame took to leave, so it keeps at least half its speed. If a stream is behind for a reason of
    its own, such as a thin line at its receiver, the others lose no more than that.
    """

    def __init__(self) -> None:
        self._wanted_bytes: dict[object, int] = {}
        self._sent_bytes: dict[object, int] = {}

    def begin(self, stream: object, num_bytes: int) -> None:
        """A stream will send this many bytes. The others do not wait for a stream with nothing to send."""
        if num_bytes > 0:
            self._wanted_bytes[stream], self._sent_bytes[stream] = num_bytes, 0

    def end(self, stream: object) -> None:
        """The stream has sent all, or will not."""
        self._wanted_bytes.pop(stream, None)
        self._sent_bytes.pop(stream, None)

    def sent(self, stream: object, num_bytes: int, took_s: float) -> float:
        """A frame of `num_bytes` took `took_s` to leave; returns the seconds to wait before the next one."""
        if stream not in self._wanted_bytes:
            return 0.0
        self._sent_bytes[stream] += num_bytes
        behind = min(self._share(each) for each in self._wanted_bytes)
        return min(took_s, MOST_HELD_BACK_S) if self._share(stream) - behind > MOST_AHEAD else 0.0

    def _share(self, stream: object) -> float:
        return self._sent_bytes[stream] / self._wanted_bytes[stream]


def no_head(run: range) -> bytes:
    """For frames that hold only chunks."""
    return b""


async def send_evenly(
    stream: Stream,
    numbers: Sequence[int],
    data: bytes | memoryview,
    chunks: Sequence[bytes | memoryview],
    sending: FairSending,
    head_of: Callable[[range], bytes] = no_head,
    left: Callable[[range], None] = lambda run: None,
    ready: Ready = is_ready,
) -> None:
    """Send these chunks, several in a frame, together with the other streams of `sending`.

    Args:
        numbers: of the chunks, ascending; places in `chunks`.
        data, chunks: all chunks joined, and each of them.
        head_of: bytes that precede a run of chunks in its frame.
        left: called with chunks that have left.
        ready: awaited before each frame.

    Raises:
        TransportError: the stream broke.
    """
    view, begins = memoryview(data), list(accumulate(map(len, chunks), initial=0))
    wanted_bytes = sum(len(chunks[number]) for number in numbers)
    sizer = FrameSizer(trio.current_time(), wanted_bytes)
    sending.begin(stream, wanted_bytes)
    try:
        for run in runs_of(numbers, chunks, lambda: sizer.max_bytes(trio.current_time())):
            asked_s = trio.current_time()
            if not await ready(run):
                return
            sizer.waited(trio.current_time() - asked_s)
            part, began_s = view[begins[run.start] : begins[run.stop]], trio.current_time()
            await stream.send_frame(part, head_of(run))
            sizer.sent(len(part))
            left(run)
            ahead_s = sending.sent(stream, len(part), trio.current_time() - began_s)
            if ahead_s:  # sending yields to others
                await trio.sleep(ahead_s)
    finally:
        sending.end(stream)
