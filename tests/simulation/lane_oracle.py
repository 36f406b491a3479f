"""The shares that lanes bring into rounds, compared with those of one data peer a lane from the same beginnings; each lane once at
every stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from peer.pipeline.transport.lane_work import LaneShare
from protocol.ids import PeerId
from protocol.pipeline.lanes.lane_machine import Dissolve
from protocol.pipeline.stage_machine import LaneConfig, Point
from tests.peer.lane_world import NUM_STAGES
from tests.simulation.lane_numbers import HALF, moved, target_value, token_value

LATE_OFF_BY_AT_MOST = 1e-12
"""Values that move with the parameters are rounded once a round."""

GIVEN_OFF_BY_AT_MOST = 1e-5
"""A neighbour's gift crosses the network in float32."""

State = tuple[list[torch.Tensor], list[float]]
"""Of all stages: parameters, (N,) each, and moments."""


@dataclass
class _Round:
    """One round of a lane, by a data peer: what it began with, and what it has after each inner step."""

    start: list[torch.Tensor]
    moments: list[float]
    states: list[State]


@dataclass
class LaneOracle:
    """One data peer (DiLoCo) for each lane, that begins its rounds with the parameters that the lane's stages begin theirs with.

    Attributes:
        starts: what each stage of a lane began a round with, (N,), the last time that it did.
    """

    config: LaneConfig
    starts: dict[tuple[int, int], dict[int, torch.Tensor]] = field(default_factory=dict)
    _rounds: dict[tuple[int, int], _Round] = field(default_factory=dict)

    def begins(self, lane: int, round_: int, stage: int, start_N: torch.Tensor) -> None:
        """A stage of a lane begins a round with these."""
        self.starts.setdefault((lane, round_), {})[stage] = start_N.double()

    def theta(self, lane: int, round_: int, steps: int, stage: int) -> torch.Tensor:
        """(N,) of a stage after so many inner steps of a round."""
        return self._state(lane, round_, steps)[0][stage]

    def _state(self, lane: int, round_: int, steps: int) -> State:
        parts = self.starts[lane, round_]
        start = [parts[stage] for stage in range(NUM_STAGES)]
        is_first = (lane, round_ - 1) not in self.starts
        moments = [0.0] * NUM_STAGES if is_first else self._state(lane, round_ - 1, self.config.inner_steps)[1]
        done = self._rounds.get((lane, round_))
        if done is None or done.moments != moments or not all(map(torch.equal, done.start, start)):
            done = self._rounds[lane, round_] = _Round(start, moments, [(start, moments)])
        while len(done.states) <= steps:
            done.states.append(self._stepped(lane, Point(round_, len(done.states) - 1), *done.states[-1]))
        return done.states[steps]

    def _stepped(self, lane: int, at: Point, thetas: list[torch.Tensor], moments: list[float]) -> State:
        gradients = [0.0] * NUM_STAGES
        for number in range(self.config.num_micro_batches):
            value = token_value(lane, at, number)
            for stage in range(NUM_STAGES):
                value = HALF * value + float(thetas[stage][0])
            slope = value - target_value(lane, at, number)
            for stage in reversed(range(NUM_STAGES)):
                gradients[stage] += slope / self.config.num_micro_batches
                slope *= HALF
        whole_square = sum(gradient**2 for gradient in gradients)
        both = [moved(*of, whole_square) for of in zip(thetas, moments, gradients, strict=True)]
        return [theta_N for theta_N, _ in both], [moment for _, moment in both]


@dataclass
class LaneLedger:
    """The rounds of each lane that the stages' commits count, and those that were reported lost.

    Attributes:
        counted: of a lane's round, its tokens at each stage whose commit has it.
        said: a lane, or a lane's stage, of which somebody says that its share is lost.
        ended_of: how a lane ended, None for one that has not.
        violations: in words.
        num_late: shares that were counted a round later than others of their lane.
    """

    oracle: LaneOracle
    counted: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    said: set[tuple[int, int]] = field(default_factory=set)
    ended_of: Callable[[int], Dissolve | None] = lambda lane: None
    violations: list[str] = field(default_factory=list)
    num_checked: int = 0
    num_late: int = 0

    def counts(self, stage: int, share: LaneShare, by: PeerId, base_N: torch.Tensor) -> None:
        """A stage's commit on `base_N` has this share, brought by this peer: one that is a round late is as far from it as it was
        from what its round began with.
        """
        step_tokens, place = (
            self.oracle.config.step_tokens,
            f"round {share.round} of lane {share.lane} at stage {stage}",
        )
        of = self.counted.setdefault((share.lane, share.round), {})
        if stage in of:
            self.violations.append(f"{place}: {of[stage]} tokens, and {share.tokens} once more by {by}")
        of[stage] = share.tokens
        if set(of.values()) != {share.tokens}:
            self.violations.append(f"{place}: {share.tokens} tokens by {by}, {of} at others")
        end = self.ended_of(share.lane)
        whole = self.oracle.config.inner_steps
        if end is not None and end.at.round == share.round and end.at.step < whole and share.tokens != end.tokens:
            self.violations.append(f"{place}: {share.tokens} tokens by {by}, and the lane ended with {end.tokens}")
        expected_N = self.oracle.theta(share.lane, share.round, share.tokens // step_tokens, stage)
        moved_N = base_N.double() - self.oracle.starts[share.lane, share.round][stage]
        self.num_late += bool(moved_N.any())
        off = float((share.theta_N.double() - expected_N - moved_N).abs().max())
        most = LATE_OFF_BY_AT_MOST if moved_N.any() else 0.0
        most = most if share.theta_N.dtype == torch.float64 else GIVEN_OFF_BY_AT_MOST
        if not off <= most:
            self.violations.append(f"{place}: {off:.1e} off one data peer after {share.tokens} tokens, by {by}")
        self.num_checked += 1
