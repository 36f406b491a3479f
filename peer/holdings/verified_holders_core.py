"""Core: whom of those that say that they hold a part of the run, an expert or a stage, a newcomer counts as its holder. Pure.

Records of the directory are their peers' own word. Who takes connections is asked for the commits of what it claims: whoever holds
a part has them all, from the run's start on. Once the run has had rounds a part is held by those who show commits of it. Who shows
none, a liar or one who is still downloading, gives a newcomer nothing that the run has. While nobody shows any of a part, those
hold it to whom the host's start record gave it: its first round may take longer than others'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from protocol.ids import PeerId, UnitName, short
from protocol.tables import several


@dataclass(frozen=True, slots=True)
class Shown:
    """What a peer that was asked showed of one part.

    Attributes:
        num_commits: from the start of the run on that verify; no more were looked at than a few.
        refused: in words, why what it showed, or its silence, is no proof; empty where it answered well, were it with nothing.
    """

    num_commits: int = 0
    refused: str = ""


@dataclass(frozen=True, slots=True)
class HolderReply:
    """What was found of a listed peer.

    Attributes:
        can_be_asked: it takes connections.
        is_there: it answered.
        shown: of each part that it claims.
    """

    can_be_asked: bool
    is_there: bool = False
    shown: Mapping[int, Shown] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Believed:
    """Whom a newcomer counts.

    Attributes:
        held: who is there, with what it has proven to hold; with nothing who has not decided.
        on_word: what those say who take no connections.
        doubted: what was claimed and not proven, of those who are there.
        reasons: of each of the latter, in a sentence.
    """

    held: Mapping[PeerId, tuple[int, ...]]
    on_word: Mapping[PeerId, tuple[int, ...]]
    doubted: Mapping[PeerId, tuple[int, ...]]
    reasons: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nobody is listed, or none of those is there."""
        return not (self.held or self.on_word or self.doubted)

    def num_claims(self, num_parts: int) -> tuple[int, ...]:
        """How many say of each part that they hold it and were not found to: what decides between parts with as many holders."""
        claims = [part for claimed in (self.on_word, self.doubted) for parts in claimed.values() for part in parts]
        return tuple(claims.count(part) for part in range(num_parts))


def everybody(listed: Mapping[PeerId, tuple[int, ...]]) -> Believed:
    """All as they are listed: for who does not choose by what others hold."""
    return Believed(listed, {}, {})


def believed(
    listed: Mapping[PeerId, tuple[int, ...]],
    looked: Mapping[PeerId, HolderReply],
    units: tuple[UnitName, ...],
    run_index: int,
    founders: Mapping[PeerId, tuple[int, ...]] = MappingProxyType({}),
) -> Believed:
    """Whom to count of those that the directory names, with the parts that they say that they hold.

    Args:
        looked: at each of them.
        units: the parts' names.
        run_index: the newest round of the run that the host has told of, 0 where it has told of none.
        founders: with which parts they began the run, by the host's start record.
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
    """Before the first round of anything there is nothing to show, nor has a founder anything of its part before the first of that."""
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
