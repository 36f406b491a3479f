"""Which peers hold which units of a run, as the coordinator hears it: at the start, when it says who votes on each, and afterwards,
when it shows who is there. An expert, or a stage, without any holder is frozen until one appears. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coordinator.progress.unit_keeper_core import frozen_sentence
from protocol.errors import RemoteProtocolError
from protocol.host.calls import NO_COMMIT
from protocol.host.expert_choice import Holding, holders, share_out
from protocol.host.reports import PeerReport
from protocol.ids import PeerId, UnitName
from protocol.rounds.messages.start import StartUnit

FROZEN_AFTER_S: Final = 10.0
"""Without a holder: founders say what they hold some seconds after the start, and a peer that restarts is away for as long."""


@dataclass(frozen=True, slots=True)
class UnitHolders:
    """A unit, the live peers that hold it, sorted, how many rounds it has had as far as anybody told, whether it is frozen: held by
    nobody for a while, in a run that goes on; and its newest round that the host can give to whoever takes it up, 0 without any.
    """

    unit: UnitName
    holders: tuple[PeerId, ...]
    index: int = 0
    is_frozen: bool = False
    kept_index: int = 0

    @property
    def why_frozen(self) -> str:
        """In a sentence, with what the host has of it; empty where it is not frozen."""
        return frozen_sentence(self.index, self.kept_index) if self.is_frozen else ""


def pause_sentence(units: Sequence[UnitHolders], *, are_stages: bool) -> str:
    """Why a run of stages stands still, in one sentence: a model without one of them computes nothing. Empty while it goes on, and for
    experts, of which the others go on without one.
    """
    frozen = [unit for unit in units if unit.is_frozen] if are_stages else []
    return f"the run pauses at {'; at '.join(f'{unit.unit}: {unit.why_frozen}' for unit in frozen)}" if frozen else ""


def founding_units(
    units: Sequence[StartUnit], parts: Sequence[UnitName], reports: Mapping[PeerId, PeerReport]
) -> tuple[StartUnit, ...]:
    """The units with those who vote on their first rounds: on a part's the founders that hold it, on a trunk's all.

    Args:
        units: as they start, the spine first.
        parts: experts, or stages, of the run; none of one without, whose units stay what they are.
        reports: of all founders, with the parts that they want whatever others hold.
    """
    if not parts:
        return tuple(units)
    peers = {peer: Holding(report.experts, max(1, report.expert_room)) for peer, report in reports.items()}
    rosters = holders(len(parts), share_out(len(parts), peers))
    by_unit = dict(zip(parts, rosters, strict=True))
    return tuple(replace(unit, roster=by_unit.get(unit.unit, ())) for unit in units)


def without_rosters(units: Sequence[StartUnit]) -> tuple[StartUnit, ...]:
    """What of the units everybody can compute."""
    return tuple(replace(unit, roster=()) for unit in units)


def newest_rounds(
    before: Mapping[UnitName, int], report: PeerReport, parts: Sequence[UnitName] = ()
) -> dict[UnitName, int]:
    """How many rounds each unit has had, with what one more report tells; of the spine, where it is one of the parts."""
    newest = dict(before)
    if report.unit in parts and report.head != NO_COMMIT:
        newest[report.unit] = max(report.index, newest.get(report.unit, 0))
    for part in report.beside:
        newest[part.unit] = max(part.index, newest.get(part.unit, 0))
    return newest


def empty_since(before: Mapping[UnitName, float], held: Sequence[UnitHolders], now_s: float) -> dict[UnitName, float]:
    """Since when each unit without a holder has none."""
    return {each.unit: before.get(each.unit, now_s) for each in held if not each.holders}


def frozen_units(empty: Mapping[UnitName, float], now_s: float) -> frozenset[UnitName]:
    """Those without a holder for so long that it is no start and no restart of one."""
    return frozenset(unit for unit, since_s in empty.items() if now_s - since_s >= FROZEN_AFTER_S)


def check_claims(report: PeerReport, parts: Sequence[UnitName]) -> None:
    """Refuse a report that names experts, or stages, that the run has not, or brings losses of experts that the peer does not hold:
    the first that are told of an expert stand.

    Raises:
        RemoteProtocolError: it does.
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
    """What a peer that takes part says that it holds without telling where it stands there: nobody is to count on it."""
    standing = {report.unit, *(each.unit for each in report.beside)}
    claimed = (parts[part] for part in report.experts if part < len(parts)) if report.head else ()
    return tuple(unit for unit in claimed if unit not in standing)


def claim_sentence(name: str, units: Sequence[UnitName]) -> str:
    """What the host says of such a peer."""
    told = ", ".join(units)
    return f"{name} says that it holds {told} and tells of no state there: it does not count as a holder"


def units_held(
    parts: Sequence[UnitName], live: Mapping[PeerId, PeerReport], newest: Mapping[UnitName, int]
) -> tuple[UnitHolders, ...]:
    """All experts, or stages, of a run with those who hold them now and tell where they stand there; none of a run without."""
    proven = {
        peer: [part for part in report.experts if part < len(parts) and parts[part] not in unproven(report, parts)]
        for peer, report in live.items()
        if report.head
    }
    peers = holders(len(parts), proven)
    return tuple(UnitHolders(unit, roster, newest.get(unit, 0)) for unit, roster in zip(parts, peers, strict=True))
