"""Chunks on a stream: consecutive chunks share a frame, because each frame costs as much as hashing 64 kB."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from averaging.codecs import Codec
from protocol.errors import RemoteProtocolError
from protocol.tensors.tensor_schema import ChunkGrid

BATCH_BYTES: Final = 800_000
"""The most bytes of whole chunks in a frame, unless one chunk is larger: 48 chunks of 16,384 int8 values, summed in three runs."""

FRAME_S: Final = 0.1
"""A frame holds what its stream carries in this time."""

TAIL_S: Final = 0.005
"""The last frames become ever smaller, down to what a stream carries in this time. A frame is checked when it is whole, and
everybody waits for the last one.
"""

CHUNK_HEAD: Final = struct.Struct("<cI")
"""Precedes the chunks of a contribution in their frame: "C", and the number of the first."""

Batch = Sequence[tuple[int, memoryview]]
"""Chunks by number, each a view of the frame that it came in."""


def consecutive(numbers: Iterable[int], max_length: int) -> Iterator[range]:
    """Ascending numbers as runs of consecutive ones, each of at most `max_length`."""
    run = range(0)
    for number in numbers:
        if number != run.stop or len(run) >= max_length:
            if run:
                yield run
            run = range(number, number)
        run = range(run.start, number + 1)
    if run:
        yield run


class FrameSizer:
    """The largest frame of a stream: one chunk at first, then what the stream carries in FRAME_S, at most twice the last frame.

    The limit of twice is needed because the first bytes only fill empty buffers. So a frame blocks a thin line, or an owner's
    cap, only for as long as a chunk does, and a broken stream loses no more. Near the end of `wanted_bytes` a frame holds at most
    half of what is left, down to what the stream carries in TAIL_S.
    """

    def __init__(self, began_s: float, wanted_bytes: int) -> None:
        self._began_s = began_s
        self._wanted_bytes = wanted_bytes
        self._sent_bytes = 0
        self._last_bytes = 0

    def waited(self, seconds: float) -> None:
        """Leave out time without anything to send: it says nothing of the line."""
        self._began_s += seconds

    def sent(self, num_bytes: int) -> None:
        """A frame has left."""
        self._sent_bytes += num_bytes
        self._last_bytes = num_bytes

    def max_bytes(self, now_s: float) -> int:
        """The limit of the next frame; less than a chunk means one chunk."""
        bytes_per_s = self._sent_bytes / max(now_s - self._began_s, 1e-6)
        tail = max((self._wanted_bytes - self._sent_bytes) // 2, int(bytes_per_s * TAIL_S))
        return min(BATCH_BYTES, 2 * self._last_bytes, int(bytes_per_s * FRAME_S), tail)


def runs_of(
    numbers: Iterable[int], chunks: Sequence[bytes | memoryview], max_bytes: Callable[[], int]
) -> Iterator[range]:
    """Runs of these ascending chunk numbers that each fit into a frame; `max_bytes` is called at the start of each."""
    run, num_bytes, limit = range(0), 0, 0
    for number in numbers:
        if number != run.stop or num_bytes + len(chunks[number]) > limit:
            if run:
                yield run
            run, num_bytes, limit = range(number, number), 0, max_bytes()
        run, num_bytes = range(run.start, number + 1), num_bytes + len(chunks[number])
    if run:
        yield run


def split_batch(data: memoryview, first_chunk: int, stop_chunk: int, codec: Codec, grid: ChunkGrid) -> Batch:
    """The chunks in a frame, from `first_chunk` on, all before `stop_chunk`.

    Raises:
        RemoteProtocolError: no chunk, a part of one, or more than there are.
    """
    batch: list[tuple[int, memoryview]] = []
    begin, chunk, last = 0, first_chunk, grid.num_chunks - 1
    whole_bytes = codec.encoded_bytes(grid.chunk_elements)
    while begin < len(data) or not batch:
        if chunk >= stop_chunk:
            raise RemoteProtocolError(f"{len(data)} bytes from chunk {first_chunk} on", f"chunks up to {stop_chunk}")
        size_bytes = whole_bytes if chunk < last else _last_bytes(codec, grid)
        if begin + size_bytes > len(data):
            raise RemoteProtocolError(f"chunk {chunk} of {len(data) - begin} bytes", f"{size_bytes}")
        batch.append((chunk, data[begin : begin + size_bytes]))
        begin, chunk = begin + size_bytes, chunk + 1
    return batch


def _last_bytes(codec: Codec, grid: ChunkGrid) -> int:
    start, stop = grid.bounds(grid.num_chunks - 1)
    return codec.encoded_bytes(stop - start)
