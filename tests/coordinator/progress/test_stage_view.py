"""Stages, lanes and the bottleneck as the host shows them, from what live peers say."""

from __future__ import annotations

from dataclasses import replace

from coordinator.progress.stage_view import LaneSummary, PipelineSummary, StageSummary, pipeline_summary
from coordinator.progress.unit_holders import UnitHolders
from protocol.host.reports import PeerReport
from protocol.ids import PeerId, UnitName

FIRST, SECOND = UnitName("stage-0"), UnitName("stage-1")
A, B, C, D, E = (PeerId(name) for name in "abcde")
UNITS = (UnitHolders(FIRST, (A, B)), UnitHolders(SECOND, (C, D, E)))


def _report(lane: int | None, does: float, could: float) -> PeerReport:
    return replace(PeerReport("training", "", FIRST), lane=lane, tokens_per_s=does, could_tokens_per_s=could)


LIVE = {
    A: _report(7, 100.0, 400.0),
    B: _report(9, 60.0, 300.0),
    C: _report(7, 110.0, 120.0),
    D: _report(9, 60.0, 70.0),
    E: _report(None, 0.0, 90.0),
}


def test_a_lane_counts_once_and_a_stage_does_what_its_lanes_do() -> None:
    look = pipeline_summary(UNITS, LIVE)
    assert look.lanes == (LaneSummary(7, ((A,), (C,)), 105.0), LaneSummary(9, ((B,), (D,)), 60.0))
    assert look.tokens_per_s == 165.0
    assert look.stages == (
        StageSummary(FIRST, 2, 0, 165.0, 700.0),
        StageSummary(SECOND, 2, 1, 165.0, 280.0, is_bottleneck=True),
    )


def test_no_stage_is_the_bottleneck_before_all_are_known_and_one_that_nobody_holds_is() -> None:
    starting = {**LIVE, A: _report(7, 0.0, 0.0), B: _report(9, 0.0, 0.0)}
    assert not any(stage.is_bottleneck for stage in pipeline_summary(UNITS, starting).stages)
    empty = (UnitHolders(FIRST, ()), UNITS[1])
    assert [stage.is_bottleneck for stage in pipeline_summary(empty, LIVE).stages] == [True, False]
    assert pipeline_summary(empty, LIVE).lanes[0].members == ((), (C,))


def test_who_names_a_lane_and_holds_no_stage_adds_nothing() -> None:
    assert pipeline_summary(UNITS, {PeerId("x"): _report(3, 1e9, 1e9)}).tokens_per_s == 0.0
    assert pipeline_summary((), {}) == PipelineSummary()
