"""The units of a run as the host follows them: their holders, their last reports, and the rounds that the host can give to new
holders.

The decisions are in coordinator/progress/unit_holders.py. Each change is logged once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from coordinator.progress.stage_commits import PartialLane, StageCommits, partial_lanes, stage_commits
from coordinator.progress.unit_holders import (
    UnitHolders,
    claim_sentence,
    empty_since,
    frozen_units,
    newest_rounds,
    pause_sentence,
    units_held,
    unproven,
)
from coordinator.progress.unit_keeper_core import frozen_sentence
from protocol.host.reports import PeerReport
from protocol.identity.names import peer_name
from protocol.ids import PeerId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink

_log = structlog.get_logger()


class UnitWatch:
    """`parts` are the run's experts or stages. Without parts this does nothing."""

    def __init__(self, parts: Sequence[UnitName], *, are_stages: bool) -> None:
        self._parts = parts
        self._are_stages = are_stages
        self._reported: dict[PeerId, Mapping[UnitName, int]] = {}
        """Newest round of each unit that each peer ever reported."""

        self._not_counted: dict[UnitName, frozenset[PeerId]] = {}
        self._kept_rounds: dict[UnitName, int] = {}
        self._empty_since_s: dict[UnitName, float] = {}
        self._frozen: frozenset[UnitName] = frozenset()
        self._unproven: dict[PeerId, tuple[UnitName, ...]] = {}
        self._paused = ""
        self.stage_commits: dict[UnitName, StageCommits] = {}
        """Content of each stage's commits that the host has; empty in a run of experts."""

        self._partial: tuple[PartialLane, ...] = ()

    def heard(self, peer: PeerId, report: PeerReport) -> None:
        """Take a peer's report: the units that it holds, and its position there."""
        self._reported[peer] = newest_rounds(self._reported.get(peer, {}), report, self._parts)
        units = unproven(report, self._parts)
        if units and self._unproven.get(peer) != units:
            _log.warning("holder_not_counted", reason=claim_sentence(peer_name(peer), units))
        self._unproven[peer] = units

    def note_not_counted(self, unit: UnitName, peers: frozenset[PeerId]) -> None:
        """Ignore these peers as holders of the unit: they did not show what they claimed. Rounds that they reported do not count."""
        self._not_counted[unit] = peers
        for peer in peers:
            self._reported[peer] = {
                reported: index for reported, index in self._reported.get(peer, {}).items() if reported != unit
            }

    @property
    def _newest_rounds(self) -> Mapping[UnitName, int]:
        newest: dict[UnitName, int] = {}
        for peer, reported in self._reported.items():
            for unit, index in reported.items():
                if peer not in self._not_counted.get(unit, frozenset()):
                    newest[unit] = max(index, newest.get(unit, 0))
        return newest

    def note_kept(self, unit: UnitName, index: int) -> None:
        """Set the newest round of a unit that the host can give to a new holder."""
        self._kept_rounds[unit] = index

    def note_commits(self, unit: UnitName, links: Sequence[ChainLink]) -> None:
        """Take all commits of a unit that the host has. A stage that lacks its part of a lane's round is logged once."""
        if not self._are_stages:
            return
        self.stage_commits = {**self.stage_commits, unit: stage_commits(links)}
        before, self._partial = self._partial, partial_lanes(self.stage_commits)
        for part in (part for part in self._partial if part not in before):
            reason = "no commit there counts it; the other stages count one more round of this lane"
            _log.warning("lane_not_everywhere", lane=part.lane, round=part.round, lacking=part.lacking, reason=reason)

    def held(self, live: Mapping[PeerId, PeerReport]) -> tuple[UnitHolders, ...]:
        """All units with their holders among these live peers."""
        held, kept = units_held(self._parts, live, self._newest_rounds), self._kept_rounds
        none = frozenset[PeerId]()
        return tuple(
            replace(
                each,
                holders=tuple(peer for peer in each.holders if peer not in self._not_counted.get(each.unit, none)),
                is_frozen=each.unit in self._frozen,
                kept_index=kept.get(each.unit, 0),
            )
            for each in held
        )

    def paused_because(self, held: Sequence[UnitHolders]) -> str:
        """Why the whole run is paused; empty while it is not."""
        return pause_sentence(held, are_stages=self._are_stages)

    def tick(self, held: Sequence[UnitHolders], now_s: float) -> None:
        """Advance the time: log units that lost their last holder, or have one again. Pass no `held` while nobody is expected to
        hold any.
        """
        self._empty_since_s = empty_since(self._empty_since_s, held, now_s)
        frozen = frozen_units(self._empty_since_s, now_s)
        newest = self._newest_rounds
        for unit in sorted(frozen - self._frozen):
            index, kept_index = newest.get(unit, 0), self._kept_rounds.get(unit, 0)
            _log.warning("unit_frozen", unit=unit, reason=frozen_sentence(index, kept_index))
        for unit in sorted(self._frozen - frozen):
            _log.info("unit_resumed", unit=unit, reason="a peer holds it again")
        self._frozen = frozen
        self._tell_pause(held)

    def _tell_pause(self, held: Sequence[UnitHolders]) -> None:
        marked = [replace(unit, is_frozen=unit.unit in self._frozen) for unit in held]
        was_paused, self._paused = self._paused, self.paused_because(marked)
        if self._paused and not was_paused:
            _log.warning("run_paused", reason=self._paused)
        elif was_paused and not self._paused:
            _log.info("run_goes_on", reason="each stage has a replica again")
