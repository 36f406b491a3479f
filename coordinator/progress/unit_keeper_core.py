"""Chooses the expert or stage whose newest commits the host fetches next, so that it can give them to a new holder. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.progress.lineage_trust import Doubt, HolderClaim, KeptLine
from protocol.host.calls import NO_ROOT
from protocol.host.reports import PeerReport, UnitStanding
from protocol.ids import CommitId, PeerId, UnitName


@dataclass(frozen=True, slots=True)
class UnitClaims:
    """A unit as its live holders report it, the holder with the most rounds first."""

    unit: UnitName
    claims: tuple[HolderClaim, ...] = ()

    @property
    def index(self) -> int:
        """The newest round that any holder reports."""
        return self.claims[0].index if self.claims else 0

    @property
    def holders(self) -> tuple[PeerId, ...]:
        """The peers that report holding it."""
        return tuple(each.peer for each in self.claims)

    def without(self, peers: Collection[PeerId]) -> UnitClaims:
        """The same without these peers."""
        return replace(self, claims=tuple(each for each in self.claims if each.peer not in peers))


def unit_claims(parts: Sequence[UnitName], live: Mapping[PeerId, PeerReport]) -> tuple[UnitClaims, ...]:
    """All experts or stages as these peers report them, including those without a holder."""
    units = []
    for unit in parts:
        found = {peer: part for peer, report in live.items() for part in standings(report) if part.unit == unit}
        indices = {peer: part.index for peer, part in found.items()}
        units.append(claims_on(unit, indices, {peer: part.state_commit for peer, part in found.items()}))
    return tuple(units)


def standings(report: PeerReport) -> tuple[UnitStanding, ...]:
    """A peer's reported position on each of its units. The spine is included only if the peer computed a state root of it, so holds
    it.
    """
    if report.state_root == NO_ROOT:
        return report.beside
    return (UnitStanding(report.unit, report.state_commit, report.state_root, report.index), *report.beside)


def claims_on(unit: UnitName, indices: Mapping[PeerId, int], commits: Mapping[PeerId, CommitId]) -> UnitClaims:
    """A unit from its live holders' reported rounds and commits."""
    holders = sorted(indices, key=lambda peer: (-indices[peer], peer))
    return UnitClaims(unit, tuple(HolderClaim(peer, indices[peer], commits[peer]) for peer in holders))


def askable(reported: UnitClaims, doubts: Mapping[PeerId, Doubt], now_s: float) -> UnitClaims:
    """The unit as reported by holders that may be asked now."""
    return reported.without({peer for peer, doubt in doubts.items() if now_s < doubt.until_s})


def believable(reported: UnitClaims, doubts: Mapping[PeerId, Doubt], now_s: float) -> UnitClaims:
    """The unit as reported by holders that have not just lied. A holder that does not answer may still tell the truth."""
    return reported.without({peer for peer, doubt in doubts.items() if doubt.num_lies and now_s < doubt.until_s})


def next_visit(
    units: Sequence[UnitClaims],
    kept: Mapping[UnitName, int],
    every_rounds: int,
    elsewhere: Collection[UnitName] = (),
    visited_s: Mapping[UnitName, float] | None = None,
) -> UnitClaims | None:
    """The unit to fetch now: the one not visited for longest, then the one that is furthest behind. None if all may wait.

    Args:
        kept: round of each unit that the host has, 0 for none.
        every_rounds: how many rounds a unit with several holders may get ahead. A unit with a single holder is fetched after each
            round, since its rounds would be lost with that holder.
        elsewhere: units with a holder on another side of a fork: what the host has may have to be replaced.
        visited_s: time of the last visit to each unit. Holders may exaggerate how far ahead a unit is, so that alone must not
            decide.
    """
    ahead = {reported.unit: reported.index - kept.get(reported.unit, 0) for reported in units if reported.holders}
    due = [
        reported
        for reported in units
        if ahead.get(reported.unit, 0) >= (every_rounds if len(reported.holders) > 1 else 1)
    ]
    apart = [reported for reported in units if reported.unit in elsewhere and reported.holders and reported not in due]
    last = visited_s or {}

    def order(reported: UnitClaims) -> tuple[float, int, int]:
        return -last.get(reported.unit, 0.0), ahead[reported.unit], -len(reported.holders)

    return max([*due, *apart], key=order, default=None)


def stand_elsewhere(units: Sequence[UnitClaims], lines: Mapping[UnitName, KeptLine]) -> frozenset[UnitName]:
    """Units with a holder off the kept lineage, at a round not newer than the kept one. A newer round may be the next one, so it
    can wait.
    """
    return frozenset(
        reported.unit
        for reported in units
        for each in reported.claims
        if (line := lines.get(reported.unit)) is not None and each.index <= line.index and not line.has(each.commit)
    )


def frozen_sentence(index: int, kept_index: int) -> str:
    """The host's sentence about a unit without a holder, with the rounds that the host has.

    Args:
        index: the newest round that any peer reported.
        kept_index: the newest round that the host can give to a new holder, 0 for none.
    """
    begin = "no live peer holds it: it waits for a holder"
    if kept_index >= index:
        return f"{begin}, which gets all of its {index} rounds from here" if index else begin
    first = kept_index + 1
    lost = f"round {index} is" if first == index else f"rounds {first} to {index} are"
    kept = f"which gets round {kept_index} from here; " if kept_index else ""
    return f"{begin}{', ' if kept else '; '}{kept}{lost} lost unless a former holder returns"
