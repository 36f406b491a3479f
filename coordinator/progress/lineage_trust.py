"""How far the host trusts what holders report about an expert or a stage, and when the lineage that it keeps is lost. Pure.

A holder's position is a claim until the host asks for it. Certificates that it then shows are proof, also of a position on another
lineage. A claim without certificates is a lie, or its certificates follow in a moment. A claim to stand on the kept lineage cannot
be checked: a holder that is behind has nothing to show, and a liar can name any commit that it heard of.
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
"""How long a holder's claims are ignored after it did not show a commit that it claimed, in seconds. Doubles with each further
time.
"""

LONGEST_REST_S: Final = 3600.0
REST_PER_ASKED: Final = 3.0
"""A holder that was asked in vain is not asked again for this many times the time lost. Stalling then costs the host at most a
quarter of its time.
"""

_APART = struct.Struct(f">{HASH_BYTES}sQQQd")


@dataclass(frozen=True, slots=True)
class HolderClaim:
    """A live holder's reported position on a unit: the number of rounds, and the newest commit whose state it has."""

    peer: PeerId
    index: int
    commit: CommitId = NO_COMMIT


@dataclass(frozen=True, slots=True)
class KeptLine:
    """The lineage of a unit that the host keeps: the index of each commit, genesis included, and the head."""

    head: CommitId
    places: Mapping[CommitId, int]

    @property
    def index(self) -> int:
        """Index of the head."""
        return self.places[self.head]

    def has(self, commit: CommitId) -> bool:
        """Whether the commit is on this lineage. True for `NO_COMMIT`: a holder that names no commit is on no other lineage."""
        return commit == NO_COMMIT or commit in self.places


@dataclass(frozen=True, slots=True)
class Doubt:
    """A holder that was asked in vain. It is not asked before `until_s`. If `num_lies` is not 0, its claims are ignored until then,
    too.
    """

    until_s: float
    num_lies: int = 0


def doubt_after(before: Doubt | None, took_s: float, now_s: float, *, is_lie: bool) -> Doubt:
    """The doubt after a holder was asked for `took_s` seconds in vain."""
    lies = (before.num_lies if before is not None else 0) + is_lie
    lie_rest_s = min(LONGEST_REST_S, LIE_REST_S * 2.0 ** min(lies - 1, 30)) if is_lie else 0.0
    return Doubt(now_s + max(lie_rest_s, REST_PER_ASKED * took_s), lies)


def not_shown(unit: UnitName, claimed: HolderClaim, line: KeptLine, shown: Mapping[CommitId, int]) -> str:
    """A sentence about a commit that a holder claimed and did not show. Empty if it has shown it, or need not.

    Args:
        line: the kept lineage at the time of asking.
        shown: the commits for which it gave certificates, starting from a commit of that lineage, with their indices.
    """
    newest = max(shown.values(), default=line.index)
    if claimed.index <= newest and (line.has(claimed.commit) or claimed.commit in shown):
        return ""
    name = peer_name(claimed.peer)
    return (
        f"{name} reports round {claimed.index} of {unit}, at commit {claimed.commit[:4].hex() or 'none'}, but shows no such commit; "
        f"its newest one is of round {newest}: its reports of {unit} do not count for now"
    )


@dataclass(frozen=True, slots=True)
class OtherLineage:
    """Another lineage of a unit that a live holder has shown. It is not preferred to the kept one.

    Attributes:
        head: head of the kept lineage at that time. A new head proves that some peer extends the kept lineage.
        fork_index: index of the last common commit. A holder at or before it stands on neither branch.
        first_index: index of the newest commit of the other lineage when it was first shown.
        index: index of its newest commit now.
        still_s: how long the kept lineage has not grown meanwhile, in seconds, summed over all processes of the host.
        looked_s: time of the last update, monotonic seconds.
        lost_since_s: since when no trusted live holder has stood on the kept lineage, monotonic seconds; None while one does.
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
        """Whether claims to stand on the kept lineage are ignored: nobody extends it, while the other lineage grows."""
        return self.index > self.first_index and self.still_s >= STILL_S

    def is_lost(self, now_s: float) -> bool:
        """Whether the kept lineage has had no holder for longer than a restart takes. The host then follows the holders' lineage."""
        return self.lost_since_s is not None and now_s - self.lost_since_s >= PATIENCE_S

    def claims(self, claimed: Collection[HolderClaim], line: KeptLine) -> tuple[PeerId, ...]:
        """The peers that claim to stand on the kept lineage after the fork."""
        return tuple(each.peer for each in claimed if line.places.get(each.commit, 0) > self.fork_index)


def shown_apart(before: OtherLineage | None, line: KeptLine, fork_index: int, index: int, now_s: float) -> OtherLineage:
    """Record that a holder has shown another lineage up to `index`, which forks off the kept one after `fork_index`."""
    if before is None or before.head != line.head:
        return OtherLineage(line.head, fork_index, index, index, now_s)
    # With several other lineages the earliest fork counts: only a claim after it is a claim to the kept lineage.
    return replace(before, fork_index=min(before.fork_index, fork_index), index=max(before.index, index))


def advance_time(
    before: OtherLineage, claimed: Collection[HolderClaim], line: KeptLine, now_s: float
) -> OtherLineage | None:
    """Advance the time, given the claims of trusted live holders. None once the kept lineage has another head. Time does not count
    while no holder stands on another lineage, and a unit without holders proves nothing.
    """
    if before.head != line.head:
        return None
    standing = [each for each in claimed if each.commit != NO_COMMIT]
    if not standing:
        return replace(before, looked_s=now_s)
    if all(line.has(each.commit) for each in standing):
        return replace(before, looked_s=now_s, lost_since_s=None)
    apart = replace(before, still_s=before.still_s + max(0.0, now_s - before.looked_s), looked_s=now_s)
    if apart.claims(standing, line) and not apart.is_word_over:
        return replace(apart, lost_since_s=None)
    return replace(apart, lost_since_s=now_s if before.lost_since_s is None else before.lost_since_s)


def word_over_sentence(unit: UnitName, peers: Collection[PeerId], apart: OtherLineage) -> str:
    """The host's sentence about peers whose claims to the kept lineage are ignored from now on."""
    names = ", ".join(map(peer_name, sorted(peers)))
    return (
        f"{names}: reported to stand on {unit} as the host keeps it, but nothing new came of it for {apart.still_s:.0f} s, while "
        f"others went from round {apart.first_index} to {apart.index} on another lineage: this report does not count"
    )


def to_bytes(apart: OtherLineage) -> bytes:
    """The bytes that the host keeps on disk for its next process."""
    return _APART.pack(apart.head, apart.fork_index, apart.first_index, apart.index, apart.still_s)


def of_bytes(kept: bytes, now_s: float) -> OtherLineage | None:
    """Read what `to_bytes` wrote, for a process that starts now; None if it is malformed. While the host was down nobody could show
    it anything, so at least one PATIENCE_S is left for that.
    """
    if len(kept) != _APART.size:
        return None
    head, fork_index, first_index, index, still_s = _APART.unpack(kept)
    if not still_s >= 0.0:  # false for NaN, too
        return None
    return OtherLineage(CommitId(head), fork_index, first_index, index, now_s, min(still_s, STILL_S - PATIENCE_S))
