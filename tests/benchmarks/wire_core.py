"""A line with a rate, a delay, a queue and losses: when a packet that is put on it now comes out. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

QUEUE_S: Final = 0.2
"""Of waiting that the queue before a line has room for, as `tc tbf ... latency 200ms`; what comes then is dropped."""

LEAST_QUEUE_BYTES: Final = 16 * 1500


@dataclass(frozen=True, slots=True)
class WireSpec:
    """The path between two peers, half of it at each of them.

    Attributes:
        rate_bit_per_s: of each peer, up and down apart; 0 for no limit.
        delay_s: one way.
        loss: share of the packets from one to the other that vanish.
    """

    rate_bit_per_s: float = 0.0
    delay_s: float = 0.0
    loss: float = 0.0

    def __str__(self) -> str:
        rate = f"{self.rate_bit_per_s / 1e6:g} Mbit/s" if self.rate_bit_per_s else "no limit"
        return f"{rate}, {self.delay_s * 1e3:g} ms one way" + (f", {self.loss:.1%} lost" if self.loss else "")


class Line:
    """One direction of one peer's line: packets leave it one after another."""

    def __init__(self, spec: WireSpec) -> None:
        self.spec = spec
        self.num_bytes = 0
        """That were carried."""

        self._free_s = 0.0

    def arrival_s(self, now_s: float, num_bytes: int, drawn: float) -> float | None:
        """When a packet that comes now is at the other end; None where it is lost or the queue is full.

        Args:
            drawn: uniform in [0, 1).
        """
        spec = self.spec
        if drawn < spec.loss / 2:
            return None
        left_s = max(now_s, self._free_s)
        if spec.rate_bit_per_s:
            room_s = max(QUEUE_S, LEAST_QUEUE_BYTES * 8 / spec.rate_bit_per_s)
            if left_s - now_s > room_s:
                return None
            left_s += num_bytes * 8 / spec.rate_bit_per_s
        self._free_s = left_s
        self.num_bytes += num_bytes
        return left_s + spec.delay_s / 2
