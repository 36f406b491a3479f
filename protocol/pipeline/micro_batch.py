"""The identity of a micro-batch in a pipeline run. By it work is requested, refused, repeated and counted once.

It names everything that the results depend on, so that repeating the work elsewhere or later gives the same results.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import HASH_BYTES, RunId

_LAYOUT: Final = struct.Struct(f"<{HASH_BYTES}sIQIQ")
_SEED_DOMAIN: Final = b"potluck micro-batch 1"
_LARGEST: Final = (1 << 32) - 1
_LARGEST_STEP: Final = (1 << 63) - 1

MICRO_BATCH_BYTES: Final = _LAYOUT.size


@dataclass(frozen=True, slots=True, order=True)
class MicroBatch:
    """One micro-batch of one step.

    Attributes:
        lane: number of the lane whose data it is, 0 in a run without lanes.
        step: inner step, counted over the whole run.
        number: of the micro-batch within its step.
        weights: version of the weights that it is computed with; forward and backward use the same one.
    """

    run_id: RunId
    lane: int
    step: int
    number: int
    weights: int

    def __post_init__(self) -> None:
        is_short = 0 <= self.lane <= _LARGEST and 0 <= self.number <= _LARGEST
        is_timely = 0 <= self.step <= _LARGEST_STEP and 0 <= self.weights <= _LARGEST_STEP
        if not is_short or not is_timely or len(self.run_id) != HASH_BYTES:
            raise LocalProtocolError(f"{self}", "whole numbers that fit, and a run id of 32 bytes")

    def encoded(self) -> bytes:
        """56 bytes, little-endian."""
        return _LAYOUT.pack(self.run_id, self.lane, self.step, self.number, self.weights)

    def seed(self, stage: int) -> int:
        """Seed of 128 bits for random draws while a stage computes this micro-batch. It is the same in the forward and backward
        pass, and at each repetition. It does not depend on the weights: a step that was undone draws the same numbers again.
        """
        drawn = _LAYOUT.pack(self.run_id, self.lane, self.step, self.number, stage)
        return int.from_bytes(sha256(_SEED_DOMAIN + drawn).digest()[:16], "big")

    def same_work(self, of: MicroBatch) -> str:
        """Why a message about this micro-batch is not one about that, in a few words; empty if it is."""
        for name in ("run_id", "lane", "step", "weights", "number"):
            if getattr(self, name) != getattr(of, name):
                return f"another {name}"
        return ""


def decode_micro_batch(data: bytes | memoryview) -> MicroBatch:
    """Decode what `encoded` wrote.

    Raises:
        RemoteProtocolError: a wrong length or numbers that are out of range.
    """
    if len(data) != MICRO_BATCH_BYTES:
        raise RemoteProtocolError(f"a micro-batch's identity of {len(data)} bytes", f"{MICRO_BATCH_BYTES}")
    run_id, lane, step, number, weights = _LAYOUT.unpack(data)
    if step > _LARGEST_STEP or weights > _LARGEST_STEP:
        raise RemoteProtocolError(f"a micro-batch of step {step} and weights {weights}", f"at most {_LARGEST_STEP}")
    return MicroBatch(RunId(run_id), lane, step, number, weights)
