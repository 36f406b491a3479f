"""A stage of a lane that computes with one number instead of a model: passes, steps, snapshots and messages as in a real one.

The change by a micro-batch depends on its tokens, on the parameters of all stages, and on what came before: one that is left out,
folded twice or done with other weights leaves other parameters behind, to the last bit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from math import sqrt

import torch
import trio

from peer.pipeline.stage.lane_compute import LaneShape
from peer.pipeline.stage.stage_snapshot import Written
from peer.pipeline.stage.stage_trainer import StageSnapshot
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from protocol.tensors.stage_schema import stage_schema
from tests.peer.whole_snapshot import decode_snapshot, encode_snapshot

RATE, MOMENTUM, CLIP = 0.05, 0.9, 0.5
HALF = 0.5
WRITTEN_IN_PASSES = 3.0
"""So many passes are computed while a snapshot is written."""

_HEAD = struct.Struct("<dIQIIH?")
"""A value, and what it is of: lane, time line, round, step, number, direction."""


def token_value(lane: int, at: Point, number: int) -> float:
    """A micro-batch's tokens: 0 to 1, from its place alone."""
    drawn = sha256(struct.pack("<QIII", lane, at.round, at.step, number)).digest()
    return int.from_bytes(drawn[:6], "little") / 2**48


def target_value(lane: int, at: Point, number: int) -> float:
    """The value that its last stage should have."""
    return 4.0 * token_value(lane, at, number + 1000) - 2.0


def moved(theta_N: torch.Tensor, moment: float, gradient: float, whole_square: float) -> tuple[torch.Tensor, float]:
    """An inner step of a stage: (N,) and its moment after it."""
    moment = MOMENTUM * moment + gradient * min(1.0, CLIP / (sqrt(whole_square) + 1e-6))
    return theta_N - RATE * moment, moment


@dataclass
class NumberWork:
    """`StageWork` of a seat.

    Args:
        newest: the run's newest parameters of this stage, (N,) float64, when the seat begins.
        pace_s: of a pass.
    """

    form: LaneShape
    lane: int
    stage: int
    newest: Callable[[], torch.Tensor]
    pace_s: Callable[[], float]
    theta_N: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    moment: float = 0.0
    gradient: float = 0.0
    held: dict[tuple[int, Point, Pass], float] = field(default_factory=dict)
    between: dict[tuple[Point, int], float] = field(default_factory=dict)

    async def open(self) -> None:
        self.theta_N = self.newest()

    async def arrived(self, message: bytes, epoch: int, at: Point, work: Pass) -> None:
        value, *identity = _HEAD.unpack_from(message)
        if identity != self._identity(epoch, at, work):
            raise RemoteProtocolError(f"a value of {identity}", f"one of {self._identity(epoch, at, work)}")
        self.held[epoch, at, work] = value

    async def run_pass(self, epoch: int, at: Point, work: Pass) -> bytes | None:
        await trio.sleep(self.pace_s())
        given = self.held.pop((epoch, at, work), None)
        value = self._backward(given, at, work.number) if work.is_backward else self._forward(given, at, work.number)
        if value is None:
            return None
        towards = self.stage - 1 if work.is_backward else self.stage + 1
        num_bytes = self.form.boundary(self.lane, towards, epoch, at, work).message_bytes
        return _HEAD.pack(value, *self._identity(epoch, at, work)).ljust(num_bytes, b"\0")

    def _identity(self, epoch: int, at: Point, work: Pass) -> list[int | bool]:
        return [self.lane, epoch, at.round, at.step, work.number, work.is_backward]

    def _forward(self, given: float | None, at: Point, number: int) -> float | None:
        if (given is None) != (self.stage == 0) or (at, number) in self.between:
            raise LocalProtocolError(f"a forward pass of {number} at {at} with {given}", "one, with what it needs")
        value = HALF * (token_value(self.lane, at, number) if given is None else given) + float(self.theta_N[0])
        self.between[at, number] = value
        return None if self._is_last else value

    def _backward(self, given: float | None, at: Point, number: int) -> float | None:
        value = self.between.pop((at, number))
        if (given is None) != self._is_last:
            raise LocalProtocolError(f"a backward pass of {number} at {at} with {given}", "one with what it needs")
        slope = value - target_value(self.lane, at, number) if given is None else given
        self.gradient += slope / self.form.config.num_micro_batches
        return HALF * slope if self.stage else None

    @property
    def _is_last(self) -> bool:
        return self.stage == self.form.config.num_stages - 1

    async def square(self) -> float:
        return self.gradient**2

    async def take_step(self, at: Point, whole_square: float) -> bool:
        self.theta_N, self.moment = moved(self.theta_N, self.moment, self.gradient, whole_square)
        self.gradient = 0.0
        return True

    async def snapshot(self) -> Written:
        data = encode_snapshot(StageSnapshot(self.theta_N, (torch.tensor([self.moment], dtype=torch.float64),)))

        async def written() -> bytes:
            await trio.sleep(WRITTEN_IN_PASSES * self.pace_s())
            return data

        return written

    async def restore(self, snapshot: bytes) -> None:
        found = decode_snapshot(snapshot, stage_schema(self.form.stages, self.stage))
        self._begin(found.theta_N, float(found.moments[0]))
        self.held.clear()

    async def theta(self) -> torch.Tensor:
        return self.theta_N.clone()

    async def adopt(self, anchor_N: torch.Tensor) -> None:
        self.newest()  # the next share is of this commit
        self._begin(anchor_N.double(), self.moment)

    def _begin(self, theta_N: torch.Tensor, moment: float) -> None:
        self.theta_N, self.moment, self.gradient = theta_N, moment, 0.0
        self.between.clear()
