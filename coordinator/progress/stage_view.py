"""Stages and lanes of a pipeline run, as the host shows them: each stage's throughput, its capacity, and the bottleneck. Pure.

All stages of a lane step together, so each moves at the speed of the slowest one. A stage's capacity is what its replicas report
they could do if they never had to wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.progress.unit_holders import UnitHolders
from protocol.host.reports import PeerReport
from protocol.ids import PeerId, UnitName


@dataclass(frozen=True, slots=True)
class LaneSummary:
    """A lane as its members report it: the peer that serves each stage, and tokens per second of the lane."""

    number: int
    members: tuple[tuple[PeerId, ...], ...]
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class StageSummary:
    """A stage: replicas that serve in lanes, spare replicas, the lanes' throughput, and the capacity of all replicas together. Both
    are tokens per second, 0 while unknown. Also whether it is the bottleneck.
    """

    unit: UnitName
    num_serving: int
    num_spare: int
    tokens_per_s: float
    capacity_tokens_per_s: float
    is_bottleneck: bool = False


@dataclass(frozen=True, slots=True)
class PipelineSummary:
    """All lanes and stages; empty in a run without stages."""

    lanes: tuple[LaneSummary, ...] = ()
    stages: tuple[StageSummary, ...] = ()

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the run. All stages of a lane train the same tokens, so each lane counts once."""
        return sum(lane.tokens_per_s for lane in self.lanes)


def pipeline_summary(units: Sequence[UnitHolders], live: Mapping[PeerId, PeerReport]) -> PipelineSummary:
    """The stages with their holders, and the lanes that live peers report."""
    numbers = sorted({report.lane for report in live.values() if report.lane is not None})
    lanes = tuple(_lane(number, units, live) for number in numbers)
    stages = [_stage(place, unit, lanes, live) for place, unit in enumerate(units)]
    slowest = _bottleneck(stages)
    return PipelineSummary(lanes, tuple(replace(stage, is_bottleneck=stage.unit == slowest) for stage in stages))


def _lane(number: int, units: Sequence[UnitHolders], live: Mapping[PeerId, PeerReport]) -> LaneSummary:
    members = tuple(
        tuple(peer for peer in unit.holders if peer in live and live[peer].lane == number) for unit in units
    )
    speeds = [live[peer].tokens_per_s for stage in members for peer in stage]
    return LaneSummary(number, members, sum(speeds) / len(speeds) if speeds else 0.0)


def _stage(
    place: int, unit: UnitHolders, lanes: Sequence[LaneSummary], live: Mapping[PeerId, PeerReport]
) -> StageSummary:
    there = [lane for lane in lanes if lane.members[place]]
    serving = sum(len(lane.members[place]) for lane in there)
    capacity = sum(live[peer].could_tokens_per_s for peer in unit.holders if peer in live)
    does = sum(lane.tokens_per_s for lane in there)
    return StageSummary(unit.unit, serving, len(unit.holders) - serving, does, capacity)


def _bottleneck(stages: Sequence[StageSummary]) -> UnitName | None:
    """A stage without a holder; otherwise the stage with the least capacity, once all are known."""
    empty = [stage for stage in stages if not stage.num_serving + stage.num_spare]
    if empty:
        return empty[0].unit
    if len(stages) < 2 or not all(stage.capacity_tokens_per_s for stage in stages):
        return None
    return min(stages, key=lambda stage: stage.capacity_tokens_per_s).unit


def lane_json(lane: LaneSummary) -> Mapping[str, object]:
    """A lane as /api/status shows it."""
    return {"lane": lane.number, "members": [list(stage) for stage in lane.members], "tokens_per_s": lane.tokens_per_s}


def stage_json(stage: StageSummary) -> Mapping[str, object]:
    """A stage as /api/status shows it."""
    return {
        "unit": stage.unit,
        "serving": stage.num_serving,
        "spare": stage.num_spare,
        "tokens_per_s": stage.tokens_per_s,
        "could_tokens_per_s": stage.capacity_tokens_per_s,
        "bottleneck": stage.is_bottleneck,
    }
