"""Holders of a run's units as the coordinator knows them: the voters at the start, and the peers shown later. An expert or stage
without a holder is frozen until one appears. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from coordinator.progress.unit_keeper_core import frozen_sentence
from protocol.errors import RemoteProtocolError
from protocol.host.calls import NO_COMMIT
from protocol.host.expert_choice import Holding, holders, share_out
from protocol.host.reports import PeerReport
from protocol.ids import PeerId, UnitName
from protocol.rounds.lineage.rule_numbers import NEW_RUNS, rules_with
from protocol.rounds.messages.start import StartRecord, StartUnit

if TYPE_CHECKING:
    from protocol.run.manifest import RunManifest

FROZEN_AFTER_S: Final = 10.0
"""How long a unit may be without a holder before it is frozen, in seconds. Founders report their holdings some seconds after the
start, and a restarting peer is away as long.
"""


@dataclass(frozen=True, slots=True)
class UnitHolders:
    """A unit and its live holders, sorted, with its newest reported round.

    `is_frozen`: it has had no holder for a while in a run that goes on. `kept_index`: its newest round that the host can give to a
    new holder, 0 for none.
    """

    unit: UnitName
    holders: tuple[PeerId, ...]
    index: int = 0
    is_frozen: bool = False
    kept_index: int = 0

    @property
    def why_frozen(self) -> str:
        """The reason in a sentence, with what the host has of it; empty if the unit is not frozen."""
        return frozen_sentence(self.index, self.kept_index) if self.is_frozen else ""


def pause_sentence(units: Sequence[UnitHolders], *, are_stages: bool) -> str:
    """Why a run of stages is paused, in one sentence: the model needs all stages. Empty while it goes on, and in a run of experts,
    since the other experts go on.
    """
    frozen = [unit for unit in units if unit.is_frozen] if are_stages else []
    return f"the run pauses at {'; at '.join(f'{unit.unit}: {unit.why_frozen}' for unit in frozen)}" if frozen else ""


def founding_units(
    units: Sequence[StartUnit], parts: Sequence[UnitName], reports: Mapping[PeerId, PeerReport]
) -> tuple[StartUnit, ...]:
    """The units with the voters of their first rounds: for a part its founding holders, for a trunk all founders.

    Args:
        units: as they start, the spine first.
        parts: experts or stages of the run. Without any, the units are returned unchanged.
        reports: reports of all founders, with the parts that each one chose to hold.
    """
    if not parts:
        return tuple(units)
    peers = {peer: Holding(report.experts, max(1, report.expert_room)) for peer, report in reports.items()}
    rosters = holders(len(parts), share_out(len(parts), peers))
    by_unit = dict(zip(parts, rosters, strict=True))
    return tuple(replace(unit, roster=by_unit.get(unit.unit, ())) for unit in units)


def founding_record(
    manifest: RunManifest,
    units: Sequence[StartUnit],
    parts: Sequence[UnitName],
    founders: Mapping[PeerId, PeerReport],
    unix_s: int,
) -> StartRecord:
    """The start of the run with these founders, at this time in seconds since 1970."""
    config, roster = manifest.config, tuple(founders)
    disks = tuple(report.incarnation for report in founders.values())
    return StartRecord(
        run_id=manifest.run_id,
        units=founding_units(units, parts, founders),
        roster=roster,
        target_tokens=config.round_target.planned(0, len(roster)),
        started_unix_s=unix_s,
        incarnations=disks if all(disks) else (),
        rules=rules_with(NEW_RUNS, config.round.cap_factor, is_open_run=config.admission.open),
    )


def newest_rounds(
    before: Mapping[UnitName, int], report: PeerReport, parts: Sequence[UnitName] = ()
) -> dict[UnitName, int]:
    """Newest round of each unit after one more report. The spine is included if it is one of the parts."""
    newest = dict(before)
    if report.unit in parts and report.head != NO_COMMIT:
        newest[report.unit] = max(report.index, newest.get(report.unit, 0))
    for part in report.beside:
        newest[part.unit] = max(part.index, newest.get(part.unit, 0))
    return newest


def empty_since(before: Mapping[UnitName, float], held: Sequence[UnitHolders], now_s: float) -> dict[UnitName, float]:
    """Since when each unit without a holder has had none."""
    return {each.unit: before.get(each.unit, now_s) for each in held if not each.holders}


def frozen_units(empty: Mapping[UnitName, float], now_s: float) -> frozenset[UnitName]:
    """Units that have had no holder for longer than a start or a restart takes."""
    return frozenset(unit for unit, since_s in empty.items() if now_s - since_s >= FROZEN_AFTER_S)


def check_claims(report: PeerReport, parts: Sequence[UnitName]) -> None:
    """Refuse a report that names experts or stages that the run does not have, or losses of experts that the peer does not hold.
    The first recorded losses of an expert stand, so they must come from a holder.

    Raises:
        RemoteProtocolError: the report makes such a claim.
    """
    for part in report.experts:
        if part >= len(parts):
            expected = f"0 to {len(parts) - 1}" if parts else "none: this run has no experts"
            raise RemoteProtocolError(f"a report that names expert {part}", expected, "start this peer again")
    held = set(report.experts) - {parts.index(unit) for unit in unproven(report, parts)}
    measured = {expert for result in report.heldout for expert, _ in result.of_experts}
    for expert in sorted(measured - held):
        expected = f"of experts that it holds: {', '.join(map(str, sorted(held))) or 'none'}"
        raise RemoteProtocolError(f"losses of expert {expert} in a report", expected, "start this peer again")


def unproven(report: PeerReport, parts: Sequence[UnitName]) -> tuple[UnitName, ...]:
    """Units that a participating peer claims to hold without reporting a position there. They do not count as held."""
    standing = {report.unit, *(each.unit for each in report.beside)}
    claimed = (parts[part] for part in report.experts if part < len(parts)) if report.head else ()
    return tuple(unit for unit in claimed if unit not in standing)


def claim_sentence(name: str, units: Sequence[UnitName]) -> str:
    """The host's sentence about such a peer."""
    named = ", ".join(units)
    return f"{name} says that it holds {named}, but reports no state of it: it does not count as a holder"


def units_held(
    parts: Sequence[UnitName], live: Mapping[PeerId, PeerReport], newest: Mapping[UnitName, int]
) -> tuple[UnitHolders, ...]:
    """All experts or stages with the live peers that hold them and report a position there; empty in a run without."""
    proven = {
        peer: [part for part in report.experts if part < len(parts) and parts[part] not in unproven(report, parts)]
        for peer, report in live.items()
        if report.head
    }
    peers = holders(len(parts), proven)
    return tuple(UnitHolders(unit, roster, newest.get(unit, 0)) for unit, roster in zip(parts, peers, strict=True))
