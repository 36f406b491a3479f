"""Lines that all streams of a peer share, in a world of memory networks: what a storm of newcomers is about."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict

import trio

from averaging.network.memory.memory_network import MemorySwarm
from protocol.ids import PeerId

LATENCY_S = 0.02
SMALL_BYTES = 4096
"""Frames of less overtake the long ones, as packets of another connection do."""


class SharedLines:
    """Each peer has one line of so many bytes a second up, and as many down. Frames take their turns on both.

    Frames of `chunk_bytes` are chunks of a state, each of which stands for a chunk of `stands_for_bytes`: a large state takes its time
    on the lines without its memory.
    """

    def __init__(self, swarm: MemorySwarm, bytes_per_s: float, chunk_bytes: int, stands_for_bytes: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._sizes = {chunk_bytes: stands_for_bytes}
        self._up_free_s: dict[PeerId, float] = defaultdict(float)
        self._down: dict[PeerId, list[tuple[float, float]]] = defaultdict(list)
        self.bytes_up: dict[PeerId, int] = defaultdict(int)
        setattr(swarm, "frame_delay_s", self._frame_delay_s)  # noqa: B010 - a method of the swarm, for this test

    def _frame_delay_s(self, sender: PeerId, receiver: PeerId, num_bytes: int) -> tuple[float, bool]:
        num_bytes = self._sizes.get(num_bytes, num_bytes)
        now_s, takes_s = trio.current_time(), num_bytes / self._bytes_per_s
        self.bytes_up[sender] += num_bytes
        if num_bytes < SMALL_BYTES:
            return takes_s + LATENCY_S, False
        begin_s = max(now_s, self._up_free_s[sender])
        self._up_free_s[sender] = begin_s + takes_s
        return self._received_s(receiver, begin_s + LATENCY_S, takes_s) - now_s, False

    def _received_s(self, receiver: PeerId, from_s: float, takes_s: float) -> float:
        """When a frame has passed the receiver's line, in the first gap that is long enough."""
        now_s = trio.current_time()
        busy = self._down[receiver] = [each for each in self._down[receiver] if each[1] > now_s]
        for begin_s, stop_s in busy:
            if from_s + takes_s <= begin_s:
                break
            from_s = max(from_s, stop_s)
        insort(busy, (from_s, from_s + takes_s))
        return from_s + takes_s
