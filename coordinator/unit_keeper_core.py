"""Which expert's, or stage's, newest commits the host fetches next, to give them on when their last holder is gone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from coordinator.stood_on import PATIENCE_S
from protocol.coordination import NO_COMMIT, NO_ROOT
from protocol.ids import CommitId, PeerId, UnitName
from protocol.reports import PeerReport, UnitStanding


@dataclass(frozen=True, slots=True)
class UnitLook:
    """A unit as its live holders tell of it: the newest round of any of them, who they are, whoever is furthest first, the commit
    whose state that one told of, and those whose states any of them told of.
    """

    unit: UnitName
    index: int
    holders: tuple[PeerId, ...]
    commit: CommitId = NO_COMMIT
    standing: frozenset[CommitId] = frozenset()


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
    holders = tuple(sorted(told, key=lambda peer: (-told[peer], peer)))
    commit = commits[holders[0]] if holders else NO_COMMIT
    return UnitLook(unit, max(told.values(), default=0), holders, commit, frozenset(commits.values()))


def next_visit(
    looks: Sequence[UnitLook],
    kept: Mapping[UnitName, int],
    every_rounds: int,
    elsewhere: Collection[UnitName] = (),
) -> UnitLook | None:
    """The unit to fetch now: the one that is furthest behind; None where all may wait.

    Args:
        kept: the round of each unit that is here, 0 where none is.
        every_rounds: so far it may get ahead while several hold it. What a single holder has is fetched after each round: with it the
            rest would be gone.
        elsewhere: units whose holders stand on a commit that is not among those kept: where that is no newer round they follow another
            side of a fork, and what is here may have to go.
    """
    ahead = {look.unit: look.index - kept.get(look.unit, 0) for look in looks if look.holders}
    due = [look for look in looks if ahead.get(look.unit, 0) >= (every_rounds if len(look.holders) > 1 else 1)]
    apart = [look for look in looks if look.unit in elsewhere and ahead.get(look.unit, 1) <= 0]
    return max([*due, *apart], key=lambda look: (ahead[look.unit], -len(look.holders)), default=None)


def stands_apart(look: UnitLook, has: Callable[[UnitName, CommitId], bool]) -> bool:
    """Whether a unit has live holders and none of them stands on what is kept. `has`: whether a commit is of the kept lineage."""
    return bool(look.holders) and not any(has(look.unit, commit) for commit in look.standing)


def still_apart(
    before: Mapping[UnitName, float], looks: Sequence[UnitLook], has: Callable[[UnitName, CommitId], bool]
) -> dict[UnitName, float]:
    """Of the units whose holders were found on another lineage than the kept one, and since when, those of which no holder is on it
    again. That nobody holds one says nothing about it.
    """
    back = {look.unit for look in looks if look.holders and not stands_apart(look, has)}
    return {unit: since_s for unit, since_s in before.items() if unit not in back}


def is_lost(apart_since_s: float | None, now_s: float) -> bool:
    """Whether no live holder has stood on what is kept for so long that it is nobody's restart: the holders' lineage is followed."""
    return apart_since_s is not None and now_s - apart_since_s >= PATIENCE_S


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
