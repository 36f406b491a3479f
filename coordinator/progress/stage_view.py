"""The stages of a pipeline run and its lanes as the host shows them: what each stage does, what it could do, and which one all the
others wait for. Pure.

All stages of a lane step together, so they all do what the slowest one does. What a stage could do is what its replicas say that they
could, were they never to wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.progress.unit_holders import UnitHolders
from protocol.host.reports import PeerReport
from protocol.ids import PeerId, UnitName


@dataclass(frozen=True, slots=True)
class LaneLook:
    """A lane by what its members say: who serves each stage, and tokens per second of the whole."""

    number: int
    members: tuple[tuple[PeerId, ...], ...]
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class StageLook:
    """A stage: replicas that serve in lanes and those to spare, what the lanes do there, what its replicas could do together, both in
    tokens per second and 0 while it is not known, and whether it is the one that the others wait for.
    """

    unit: UnitName
    num_serving: int
    num_spare: int
    tokens_per_s: float
    could_tokens_per_s: float
    is_bottleneck: bool = False


@dataclass(frozen=True, slots=True)
class PipelineLook:
    """All of it; nothing in a run without stages."""

    lanes: tuple[LaneLook, ...] = ()
    stages: tuple[StageLook, ...] = ()

    @property
    def tokens_per_s(self) -> float:
        """Of the run: a lane's stages train the same tokens, so each lane counts once."""
        return sum(lane.tokens_per_s for lane in self.lanes)


def pipeline_look(units: Sequence[UnitHolders], live: Mapping[PeerId, PeerReport]) -> PipelineLook:
    """The stages with their holders, and the lanes that live peers say that they serve in."""
    numbers = sorted({report.lane for report in live.values() if report.lane is not None})
    lanes = tuple(_lane(number, units, live) for number in numbers)
    stages = [_stage(place, unit, lanes, live) for place, unit in enumerate(units)]
    slowest = _bottleneck(stages)
    return PipelineLook(lanes, tuple(replace(stage, is_bottleneck=stage.unit == slowest) for stage in stages))


def _lane(number: int, units: Sequence[UnitHolders], live: Mapping[PeerId, PeerReport]) -> LaneLook:
    members = tuple(
        tuple(peer for peer in unit.holders if peer in live and live[peer].lane == number) for unit in units
    )
    speeds = [live[peer].tokens_per_s for stage in members for peer in stage]
    return LaneLook(number, members, sum(speeds) / len(speeds) if speeds else 0.0)


def _stage(place: int, unit: UnitHolders, lanes: Sequence[LaneLook], live: Mapping[PeerId, PeerReport]) -> StageLook:
    there = [lane for lane in lanes if lane.members[place]]
    serving = sum(len(lane.members[place]) for lane in there)
    could = sum(live[peer].could_tokens_per_s for peer in unit.holders if peer in live)
    does = sum(lane.tokens_per_s for lane in there)
    return StageLook(unit.unit, serving, len(unit.holders) - serving, does, could)


def _bottleneck(stages: Sequence[StageLook]) -> UnitName | None:
    """The stage that nobody holds; else the one that could do least, once all are known."""
    empty = [stage for stage in stages if not stage.num_serving + stage.num_spare]
    if empty:
        return empty[0].unit
    if len(stages) < 2 or not all(stage.could_tokens_per_s for stage in stages):
        return None
    return min(stages, key=lambda stage: stage.could_tokens_per_s).unit
