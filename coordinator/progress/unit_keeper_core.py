"""Chooses the expert or stage whose newest commits the host fetches next, so that it can give them to a new holder. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.progress.lineage_trust import Doubt, HolderClaim, KeptLine
from protocol.host.calls import NO_ROOT
from protocol.host.reports import PeerReport, UnitStanding
from protocol.ids import CommitId, PeerId, UnitName


@dataclass(frozen=True, slots=True)
class UnitLook:
    """A unit as its live holders report it, the holder with the most rounds first."""

    unit: UnitName
    told: tuple[HolderClaim, ...] = ()

    @property
    def index(self) -> int:
        """The newest round that any holder reports."""
        return self.told[0].index if self.told else 0

    @property
    def holders(self) -> tuple[PeerId, ...]:
        """The peers that report holding it."""
        return tuple(each.peer for each in self.told)

    def without(self, peers: Collection[PeerId]) -> UnitLook:
        """The same without these peers."""
        return replace(self, told=tuple(each for each in self.told if each.peer not in peers))


def unit_looks(parts: Sequence[UnitName], live: Mapping[PeerId, PeerReport]) -> tuple[UnitLook, ...]:
    """All experts or stages as these peers report them, including those without a holder."""
    looks = []
    for unit in parts:
        found = {peer: part for peer, report in live.items() for part in standings(report) if part.unit == unit}
        told = {peer: part.index for peer, part in found.items()}
        looks.append(look_of(unit, told, {peer: part.state_commit for peer, part in found.items()}))
    return tuple(looks)


def standings(report: PeerReport) -> tuple[UnitStanding, ...]:
    """A peer's reported position on each of its units. The spine is included only if the peer computed a state root of it, so holds
    it.
    """
    if report.state_root == NO_ROOT:
        return report.beside
    return (UnitStanding(report.unit, report.state_commit, report.state_root, report.index), *report.beside)


def look_of(unit: UnitName, told: Mapping[PeerId, int], commits: Mapping[PeerId, CommitId]) -> UnitLook:
    """A unit from its live holders' reported rounds and commits."""
    holders = sorted(told, key=lambda peer: (-told[peer], peer))
    return UnitLook(unit, tuple(HolderClaim(peer, told[peer], commits[peer]) for peer in holders))


def askable(look: UnitLook, doubts: Mapping[PeerId, Doubt], now_s: float) -> UnitLook:
    """The unit as reported by holders that may be asked now."""
    return look.without({peer for peer, doubt in doubts.items() if now_s < doubt.until_s})


def believable(look: UnitLook, doubts: Mapping[PeerId, Doubt], now_s: float) -> UnitLook:
    """The unit as reported by holders that have not just lied. A holder that does not answer may still tell the truth."""
    return look.without({peer for peer, doubt in doubts.items() if doubt.num_lies and now_s < doubt.until_s})


def next_visit(
    looks: Sequence[UnitLook],
    kept: Mapping[UnitName, int],
    every_rounds: int,
    elsewhere: Collection[UnitName] = (),
    visited_s: Mapping[UnitName, float] | None = None,
) -> UnitLook | None:
    """The unit to fetch now: the one not visited for longest, then the one that is furthest behind. None if all may wait.

    Args:
        kept: round of each unit that the host has, 0 for none.
        every_rounds: how many rounds a unit with several holders may get ahead. A unit with a single holder is fetched after each
            round, since its rounds would be lost with that holder.
        elsewhere: units with a holder on another side of a fork: what the host has may have to be replaced.
        visited_s: time of the last visit to each unit. Holders may exaggerate how far ahead a unit is, so that alone must not
            decide.
    """
    ahead = {look.unit: look.index - kept.get(look.unit, 0) for look in looks if look.holders}
    due = [look for look in looks if ahead.get(look.unit, 0) >= (every_rounds if len(look.holders) > 1 else 1)]
    apart = [look for look in looks if look.unit in elsewhere and look.holders and look not in due]
    last = visited_s or {}

    def order(look: UnitLook) -> tuple[float, int, int]:
        return -last.get(look.unit, 0.0), ahead[look.unit], -len(look.holders)

    return max([*due, *apart], key=order, default=None)


def stand_elsewhere(looks: Sequence[UnitLook], lines: Mapping[UnitName, KeptLine]) -> frozenset[UnitName]:
    """Units with a holder off the kept lineage, at a round not newer than the kept one. A newer round may be the next one, so it
    can wait.
    """
    return frozenset(
        look.unit
        for look in looks
        for each in look.told
        if (line := lines.get(look.unit)) is not None and each.index <= line.index and not line.has(each.commit)
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
