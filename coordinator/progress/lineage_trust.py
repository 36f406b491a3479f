"""Whose word about an expert, or a stage, counts at the host, for how long, and when what it keeps is with nobody any more. Pure.

Where a holder stands is its own word until it is asked. What it then shows by certificates is proof, also that it stands on another
lineage; what it tells of and does not show is a lie, or will be shown in a moment. That it stands on what is kept cannot be asked for:
who is behind has nothing to show, and who lies can name any commit that it heard of.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from coordinator.progress.live_lineages import PATIENCE_S, STILL_S
from protocol.host.calls import NO_COMMIT
from protocol.identity.names import peer_name
from protocol.ids import HASH_BYTES, CommitId, PeerId, UnitName

LIE_REST_S: Final = 30.0
"""The word of one who did not show what it tells of does not count for so long, and for twice as long after each further time."""

LONGEST_REST_S: Final = 3600.0
REST_PER_ASKED: Final = 3.0
"""Who was asked in vain is left alone for so many times as long as that took: stalling takes a quarter of our time."""

_APART = struct.Struct(f">{HASH_BYTES}sQQQd")


@dataclass(frozen=True, slots=True)
class HolderClaim:
    """Where a live holder says that it stands on a unit: how many rounds that has had, and the newest commit whose state it has."""

    peer: PeerId
    index: int
    commit: CommitId = NO_COMMIT


@dataclass(frozen=True, slots=True)
class KeptLine:
    """The lineage of a unit that is kept: the index of each of its commits, with the genesis, and its head."""

    head: CommitId
    places: Mapping[CommitId, int]

    @property
    def index(self) -> int:
        """Of the head."""
        return self.places[self.head]

    def has(self, commit: CommitId) -> bool:
        """Whether it is a commit of this lineage; whoever tells of none stands nowhere else."""
        return commit == NO_COMMIT or commit in self.places


@dataclass(frozen=True, slots=True)
class Doubt:
    """A holder that was asked in vain: it is not asked before `until_s`; where it lied, so often, its word counts as little."""

    until_s: float
    num_lies: int = 0


def doubt_after(before: Doubt | None, took_s: float, now_s: float, *, is_lie: bool) -> Doubt:
    """A holder was asked and `took_s` seconds of that were in vain."""
    lies = (before.num_lies if before is not None else 0) + is_lie
    lie_rest_s = min(LONGEST_REST_S, LIE_REST_S * 2.0 ** min(lies - 1, 30)) if is_lie else 0.0
    return Doubt(now_s + max(lie_rest_s, REST_PER_ASKED * took_s), lies)


def not_shown(unit: UnitName, told: HolderClaim, line: KeptLine, shown: Mapping[CommitId, int]) -> str:
    """In a sentence, what a holder that was asked tells of and did not show; empty where it has shown it, or need not.

    Args:
        line: what was kept when it was asked.
        shown: the commits after some commit of that line for which it gave certificates, with their indices.
    """
    newest = max(shown.values(), default=line.index)
    if told.index <= newest and (line.has(told.commit) or told.commit in shown):
        return ""
    name = peer_name(told.peer)
    return (
        f"{name} says that it stands at round {told.index} of {unit}, at commit {told.commit[:4].hex() or 'none'}, and shows no such "
        f"commit, its newest is of round {newest}: its word does not count for now"
    )


@dataclass(frozen=True, slots=True)
class OtherLineage:
    """A unit of which a live holder has shown another lineage, which is not preferred to the kept one.

    Attributes:
        head: of what was kept when that was shown; another one is proof that somebody goes on there.
        fork_index: of the last commit that both have: who stands there, or before it, stands on neither.
        first_index: of the newest commit of the other one that was shown, the first time.
        index: the same now.
        still_s: for how long that has been so, in all processes of the host together.
        looked_s: when this was looked at last.
        lost_since_s: since when no live holder whose word counts has stood on what is kept; None while one does.
    """

    head: CommitId
    fork_index: int
    first_index: int
    index: int
    looked_s: float
    still_s: float = 0.0
    lost_since_s: float | None = None

    @property
    def is_word_over(self) -> bool:
        """Whether who says that it stands on what is kept is believed no more: nobody goes on there, and others elsewhere do."""
        return self.index > self.first_index and self.still_s >= STILL_S

    def is_lost(self, now_s: float) -> bool:
        """Whether nobody has stood on what is kept for so long that it is nobody's restart: the holders' lineage is followed."""
        return self.lost_since_s is not None and now_s - self.lost_since_s >= PATIENCE_S

    def claims(self, told: Collection[HolderClaim], line: KeptLine) -> tuple[PeerId, ...]:
        """Who says that it stands on what is kept after the fork."""
        return tuple(each.peer for each in told if line.places.get(each.commit, 0) > self.fork_index)


def shown_apart(before: OtherLineage | None, line: KeptLine, fork_index: int, index: int, now_s: float) -> OtherLineage:
    """A holder has shown another lineage up to a commit of this index, which parts from the kept one after that of `fork_index`."""
    if before is None or before.head != line.head:
        return OtherLineage(line.head, fork_index, index, index, now_s)
    # of several lineages beside the kept one the earliest fork: who says that it stands after that says something
    return replace(before, fork_index=min(before.fork_index, fork_index), index=max(before.index, index))


def looked_apart(
    before: OtherLineage, told: Collection[HolderClaim], line: KeptLine, now_s: float
) -> OtherLineage | None:
    """Let time count, with what live holders whose word counts say now; None once what is kept has another head. That nobody holds the
    unit says nothing about it; nor does the time count while nobody stands elsewhere.
    """
    if before.head != line.head:
        return None
    standing = [each for each in told if each.commit != NO_COMMIT]
    if not standing:
        return replace(before, looked_s=now_s)
    if all(line.has(each.commit) for each in standing):
        return replace(before, looked_s=now_s, lost_since_s=None)
    apart = replace(before, still_s=before.still_s + max(0.0, now_s - before.looked_s), looked_s=now_s)
    if apart.claims(standing, line) and not apart.is_word_over:
        return replace(apart, lost_since_s=None)
    return replace(apart, lost_since_s=now_s if before.lost_since_s is None else before.lost_since_s)


def word_over_sentence(unit: UnitName, peers: Collection[PeerId], apart: OtherLineage) -> str:
    """What the host says of those whose word speaks for nothing any more."""
    names = ", ".join(map(peer_name, sorted(peers)))
    return (
        f"{names}: said to stand on {unit} as the host keeps it, of which nothing new was shown for {apart.still_s:.0f} s, while "
        f"others went from round {apart.first_index} to {apart.index} beside it: this word does not count"
    )


def to_bytes(apart: OtherLineage) -> bytes:
    """As the host's disk keeps it for its next process."""
    return _APART.pack(apart.head, apart.fork_index, apart.first_index, apart.index, apart.still_s)


def of_bytes(kept: bytes, now_s: float) -> OtherLineage | None:
    """What `to_bytes` made, for a process that starts now; None where it is nothing of the kind. While the host was away nobody could
    show it anything: one patience is left to do so at least.
    """
    if len(kept) != _APART.size:
        return None
    head, fork_index, first_index, index, still_s = _APART.unpack(kept)
    if not still_s >= 0.0:  # nor a number at all
        return None
    return OtherLineage(CommitId(head), fork_index, first_index, index, now_s, min(still_s, STILL_S - PATIENCE_S))
