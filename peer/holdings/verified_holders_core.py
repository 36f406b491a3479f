"""Decides which claimed holders of a part of the run, an expert or a stage, a newcomer believes. Pure.

Records in the directory are the peers' own claims. A peer that takes connections is asked for the commits of what it claims,
since a holder of a part has all its commits from the run's start on. Once the run has had rounds, only peers that show commits of
a part count as its holders. A peer that shows none may lie or may still be downloading; a newcomer gets nothing from it. While no
peer shows commits of a part, its founders by the host's start record count: its first round may take longer than other parts'
rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from protocol.ids import PeerId, UnitName, short
from protocol.tables import several


@dataclass(frozen=True, slots=True)
class Shown:
    """A peer's proof for one part.

    Attributes:
        num_commits: commits that verify, from the start of the run on; only the first few are checked.
        refused: why its answer, or its silence, is no proof; empty if it answered correctly, even without commits.
    """

    num_commits: int = 0
    refused: str = ""


@dataclass(frozen=True, slots=True)
class HolderReply:
    """The reply of a listed peer.

    Attributes:
        can_be_asked: it takes connections.
        is_there: it answered.
        shown: its proof for each part that it claims.
    """

    can_be_asked: bool
    is_there: bool = False
    shown: Mapping[int, Shown] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Believed:
    """The holders that a newcomer believes.

    Attributes:
        held: reachable peers with the parts they have proven to hold; empty for a peer that has not decided.
        on_word: claims of peers that take no connections.
        doubted: claims of reachable peers without a proof.
        reasons: why each of these is doubted, in a sentence.
    """

    held: Mapping[PeerId, tuple[int, ...]]
    on_word: Mapping[PeerId, tuple[int, ...]]
    doubted: Mapping[PeerId, tuple[int, ...]]
    reasons: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no peer is listed, or none of the listed peers is reachable."""
        return not (self.held or self.on_word or self.doubted)

    def num_claims(self, num_parts: int) -> tuple[int, ...]:
        """For each part, how many peers claim it without being verified. It decides between parts with equal numbers of holders."""
        claims = [part for claimed in (self.on_word, self.doubted) for parts in claimed.values() for part in parts]
        return tuple(claims.count(part) for part in range(num_parts))


def everybody(listed: Mapping[PeerId, tuple[int, ...]]) -> Believed:
    """Believe every listed peer, for a peer whose choice does not depend on the others."""
    return Believed(listed, {}, {})


def believed(
    listed: Mapping[PeerId, tuple[int, ...]],
    looked: Mapping[PeerId, HolderReply],
    units: tuple[UnitName, ...],
    run_index: int,
    founders: Mapping[PeerId, tuple[int, ...]] = MappingProxyType({}),
) -> Believed:
    """Decide which claims in the directory to believe.

    Args:
        looked: the reply of each peer.
        units: the parts' names.
        run_index: the newest round of the run that the host has announced, 0 if none.
        founders: the parts that they founded the run with, by the host's start record.
    """
    num_shown = dict.fromkeys(range(len(units)), 0)
    for each in looked.values():
        for part, shown in each.shown.items():
            num_shown[part] = max(num_shown.get(part, 0), shown.num_commits)
    has_begun = run_index > 0 or any(num_shown.values())
    there = {peer: claims for peer, claims in listed.items() if looked[peer].is_there}

    def is_proven(peer: PeerId, part: int) -> bool:
        is_expected = has_begun and (num_shown.get(part, 0) > 0 or part not in founders.get(peer, ()))
        return _is_proof(looked[peer].shown.get(part, Shown()), is_expected=is_expected)

    proven = {peer: tuple(part for part in claims if is_proven(peer, part)) for peer, claims in there.items()}
    doubted = {peer: tuple(part for part in claims if part not in proven[peer]) for peer, claims in there.items()}
    return Believed(
        held={peer: parts for peer, parts in proven.items() if parts or not there[peer]},
        on_word={peer: claims for peer, claims in listed.items() if not looked[peer].can_be_asked},
        doubted={peer: parts for peer, parts in doubted.items() if parts},
        reasons=tuple(_sentences(doubted, looked, units, num_shown)),
    )


def _is_proof(shown: Shown, *, is_expected: bool) -> bool:
    """Whether the reply is a proof. Before the run's first round there is nothing to show, and a founder has nothing before the
    first round of its part.
    """
    return not shown.refused and (shown.num_commits > 0 or not is_expected)


def _sentences(
    doubted: Mapping[PeerId, tuple[int, ...]],
    looked: Mapping[PeerId, HolderReply],
    units: tuple[UnitName, ...],
    num_shown: Mapping[int, int],
) -> Iterator[str]:
    for peer, parts in doubted.items():
        for part in parts:
            name = units[part] if part < len(units) else f"part {part} of {len(units)}"
            shown = looked[peer].shown.get(part, Shown())
            others = f", of which others show {several(num_shown[part], 'commit')}" if num_shown.get(part) else ""
            why = shown.refused or f"shows no commit of it{others}"
            yield f"{short(peer)} says that it holds {name} and {why}: it does not count as a holder"
