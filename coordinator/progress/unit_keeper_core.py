"""Which expert's, or stage's, newest commits the host fetches next, to give them on when their last holder is gone. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.progress.lineage_trust import Doubt, HolderClaim, KeptLine
from protocol.host.calls import NO_ROOT
from protocol.host.reports import PeerReport, UnitStanding
from protocol.ids import CommitId, PeerId, UnitName


@dataclass(frozen=True, slots=True)
class UnitLook:
    """A unit as its live holders tell of it, whoever is furthest first."""

    unit: UnitName
    told: tuple[HolderClaim, ...] = ()

    @property
    def index(self) -> int:
        """The newest round of any of them."""
        return self.told[0].index if self.told else 0

    @property
    def holders(self) -> tuple[PeerId, ...]:
        """Who they are."""
        return tuple(each.peer for each in self.told)

    def without(self, peers: Collection[PeerId]) -> UnitLook:
        """As the others tell of it."""
        return replace(self, told=tuple(each for each in self.told if each.peer not in peers))


def unit_looks(parts: Sequence[UnitName], live: Mapping[PeerId, PeerReport]) -> tuple[UnitLook, ...]:
    """All experts, or stages, of a run as these peers tell of them, also those that none of them holds."""
    looks = []
    for unit in parts:
        found = {peer: part for peer, report in live.items() for part in standings(report) if part.unit == unit}
        told = {peer: part.index for peer, part in found.items()}
        looks.append(look_of(unit, told, {peer: part.state_commit for peer, part in found.items()}))
    return tuple(looks)


def standings(report: PeerReport) -> tuple[UnitStanding, ...]:
    """Where a peer says that its units stand, the spine with them where it holds that: who does not has computed no root of it."""
    if report.state_root == NO_ROOT:
        return report.beside
    return (UnitStanding(report.unit, report.state_commit, report.state_root, report.index), *report.beside)


def look_of(unit: UnitName, told: Mapping[PeerId, int], commits: Mapping[PeerId, CommitId]) -> UnitLook:
    """A unit whose live holders tell of these rounds and commits."""
    holders = sorted(told, key=lambda peer: (-told[peer], peer))
    return UnitLook(unit, tuple(HolderClaim(peer, told[peer], commits[peer]) for peer in holders))


def askable(look: UnitLook, doubts: Mapping[PeerId, Doubt], now_s: float) -> UnitLook:
    """As those tell of a unit who are to be asked now."""
    return look.without({peer for peer, doubt in doubts.items() if now_s < doubt.until_s})


def believable(look: UnitLook, doubts: Mapping[PeerId, Doubt], now_s: float) -> UnitLook:
    """As those tell of a unit who have not just lied; who does not answer may stand where it says."""
    return look.without({peer for peer, doubt in doubts.items() if doubt.num_lies and now_s < doubt.until_s})


def next_visit(
    looks: Sequence[UnitLook],
    kept: Mapping[UnitName, int],
    every_rounds: int,
    elsewhere: Collection[UnitName] = (),
    visited_s: Mapping[UnitName, float] | None = None,
) -> UnitLook | None:
    """The unit to fetch now: the one that was not visited for longest, of several the one that is furthest behind; None where all may
    wait.

    Args:
        kept: the round of each unit that is here, 0 where none is.
        every_rounds: so far it may get ahead while several hold it. What a single holder has is fetched after each round: with it the
            rest would be gone.
        elsewhere: units of which a holder stands on another side of a fork: what is here may have to go.
        visited_s: when each was visited last. How far a unit is ahead is its holders' word: it must not keep others waiting.
    """
    ahead = {look.unit: look.index - kept.get(look.unit, 0) for look in looks if look.holders}
    due = [look for look in looks if ahead.get(look.unit, 0) >= (every_rounds if len(look.holders) > 1 else 1)]
    apart = [look for look in looks if look.unit in elsewhere and look.holders and look not in due]
    last = visited_s or {}

    def order(look: UnitLook) -> tuple[float, int, int]:
        return -last.get(look.unit, 0.0), ahead[look.unit], -len(look.holders)

    return max([*due, *apart], key=order, default=None)


def stand_elsewhere(looks: Sequence[UnitLook], lines: Mapping[UnitName, KeptLine]) -> frozenset[UnitName]:
    """The units of which a holder stands at no newer round than what is kept, and not there. A newer one may be the next, and wait."""
    return frozenset(
        look.unit
        for look in looks
        for each in look.told
        if (line := lines.get(look.unit)) is not None and each.index <= line.index and not line.has(each.commit)
    )


def frozen_sentence(index: int, kept_index: int) -> str:
    """What the host says of an expert that nobody holds any more: what of its rounds is here.

    Args:
        index: the newest round that anybody told of.
        kept_index: the newest round that the host can give on, 0 without any.
    """
    begin = "nobody who is there holds it: it waits for a holder"
    if kept_index >= index:
        return f"{begin}, who gets all of its {index} rounds from here" if index else begin
    first = kept_index + 1
    lost = f"round {index} is" if first == index else f"rounds {first} to {index} are"
    kept = f"who gets round {kept_index} from here; " if kept_index else ""
    return f"{begin}{', ' if kept else '; '}{kept}{lost} lost unless one who held it comes back"
