"""Which lineages count at the host: one on which no live peer stands, while others stand elsewhere, is with nobody who could give it.
Pure.

The host has certificates and no states. Were the preferred lineage's holders gone for good, it would tell of a head that nobody can go
on from, and wait for a last checkpoint that nobody can give, while the peers go on, and end, on another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from protocol.ids import HASH_BYTES, CommitId
from protocol.rounds.lineage.lineage import CommitTree, best_head, best_stood_on

PATIENCE_S: Final = 60.0
"""As long as its holders may be restarting, or be cut off from the host alone."""

UNPROVEN_S: Final = 240.0
"""How long heads that nobody has shown may hold that patience up: an honest peer's commits come with its next reports, and a claim
that stays a claim does not keep the host on a lost lineage for ever.
"""

STILL_S: Final = UNPROVEN_S
"""How long it counts that somebody says that it stands on the preferred lineage, while that does not grow and others do. Who really
has its bytes gives them to the others, who come over to it, and does not stand there alone for ever; who lies can name any commit that
is known, and cannot make another one after it.
"""


@dataclass(frozen=True, slots=True)
class Still:
    """The preferred lineage does not grow while somebody stands on another.

    Attributes:
        best: its head.
        since_s: since when it has been that.
        first_index: of the newest commit beside that lineage which was known then.
        index: where those stand now who stand elsewhere.
        claimed: the commits after the fork on which somebody says that it stands.
        waits_until_s: until when this stands though nobody is known to stand elsewhere: after a start reports come one by one.
    """

    best: CommitId
    since_s: float
    first_index: int
    index: int
    claimed: frozenset[CommitId]
    waits_until_s: float = 0.0

    def doubted(self, now_s: float) -> frozenset[CommitId]:
        """What is claimed and speaks for nothing any more."""
        is_over = self.index > self.first_index and now_s - self.since_s >= STILL_S
        return self.claimed if is_over else frozenset()


@dataclass(frozen=True, slots=True)
class LiveLineages:
    """Where live peers stand, as it was looked at last.

    Attributes:
        tree, heads: what it is of; of the heads those that are known and believed.
        known: all that are known.
        lost_since_s: since when nobody has stood on the preferred lineage while somebody stood on another; None where that is not so.
        unproven_since_s: since when only heads that nobody has shown speak against that; None where none do.
        counted: with what lies behind them, the only commits that count now; none where all do.
        still: how long the preferred lineage has not grown while somebody stands on another; None where that is not so.
    """

    tree: CommitTree | None = None
    heads: frozenset[CommitId] = frozenset()
    lost_since_s: float | None = None
    unproven_since_s: float | None = None
    counted: frozenset[CommitId] = frozenset()
    known: frozenset[CommitId] = frozenset()
    still: Still | None = None


def looked_at(before: LiveLineages, tree: CommitTree, heads: frozenset[CommitId], now_s: float) -> LiveLineages:
    """`heads`: where live peers say that they stand. Call about once a second. An unknown one may be on the preferred lineage for a
    while, unless that was lost already; of nobody's standing anywhere nothing follows, and of standing for long on a preferred lineage
    that does not grow, while others go on, neither.
    """
    known = heads & tree.nodes.keys()
    still = _still(before, tree, known, now_s) if known else before.still
    believed = known - still.doubted(now_s) if still is not None else known
    if not known:
        looked = replace(before, tree=tree)
    elif not _is_lost_now(before, tree, believed):
        looked = LiveLineages(tree, believed)
    else:
        looked = _lost(before, tree, believed, now_s, is_proven=known == heads)
    looked = replace(looked, known=known, still=still)
    is_over = looked.lost_since_s is not None and now_s - looked.lost_since_s >= PATIENCE_S
    return replace(looked, counted=looked.heads if is_over else frozenset())


def _still(before: LiveLineages, tree: CommitTree, known: frozenset[CommitId], now_s: float) -> Still | None:
    if before.tree is tree and before.known == known:
        return before.still
    if not tree.has_fork:
        return None
    best = best_head(tree)
    elsewhere, was = {head for head in known if tree.path(head, best) is None}, before.still
    if not elsewhere:
        return was if was is not None and now_s < was.waits_until_s else None
    held = best_stood_on(tree, elsewhere)
    fork, index = tree.common(best, held), tree.nodes[held].link.index
    claimed = frozenset(head for head in known - elsewhere if head != fork and tree.path(fork or tree.root, head))
    if was is None or was.best != best:
        return Still(best, now_s, max(_indices_beside(tree, best).values()), index, claimed)
    return replace(was, index=index, claimed=claimed)


def _indices_beside(tree: CommitTree, best: CommitId) -> dict[CommitId, int]:
    """Of the commits that are not of the lineage which ends there."""
    preferred = {tree.root, best, *(node.link.parent for node in tree.path(tree.root, best) or ())}
    return {commit: node.link.index for commit, node in tree.nodes.items() if commit not in preferred}


@dataclass(frozen=True, slots=True)
class Seen:
    """When the host saw each commit first, as its ledger has it, and now, in seconds since 1970."""

    unix_s: Mapping[CommitId, int]
    now_unix_s: float


def restored(tree: CommitTree, counted: frozenset[CommitId], now_s: float, seen: Seen) -> LiveLineages:
    """As a former process of the host left it: what counted then, and what came after it, counts until somebody stands elsewhere. How
    long the preferred lineage has not grown is told by when its commits came: a host that restarts every three minutes would else
    believe for ever who only says that it stands there.
    """
    if counted:
        return LiveLineages(tree, counted, now_s - PATIENCE_S, counted=counted)
    return LiveLineages(still=_still_since_seen(tree, now_s, seen)) if tree.has_fork else LiveLineages()


def _still_since_seen(tree: CommitTree, now_s: float, seen: Seen) -> Still | None:
    best = best_head(tree)
    beside = _indices_beside(tree, best)
    came = {commit: seen.unix_s[commit] for commit in (best, *beside) if commit in seen.unix_s}
    if best not in came or len(came) < 2:
        return None
    since_unix_s = max(came[best], min(came[commit] for commit in beside if commit in came))
    first_index = max(index for commit, index in beside.items() if came.get(commit, since_unix_s) <= since_unix_s)
    # while the host was away nobody could show it anything: one patience is left to do so at least
    still_s = min(max(0.0, seen.now_unix_s - since_unix_s), STILL_S - PATIENCE_S)
    return Still(best, now_s - still_s, first_index, first_index, frozenset(), now_s + PATIENCE_S)


def to_bytes(counted: frozenset[CommitId]) -> bytes:
    """As the ledger keeps it."""
    return b"".join(sorted(counted))


def of_bytes(kept: bytes) -> frozenset[CommitId]:
    """What `to_bytes` made."""
    return frozenset(CommitId(kept[at : at + HASH_BYTES]) for at in range(0, len(kept), HASH_BYTES))


def _is_lost_now(before: LiveLineages, tree: CommitTree, known: frozenset[CommitId]) -> bool:
    if before.tree is tree and before.heads == known:
        return before.lost_since_s is not None or before.unproven_since_s is not None
    return is_lost(tree, known)


def _lost(
    before: LiveLineages, tree: CommitTree, known: frozenset[CommitId], now_s: float, *, is_proven: bool
) -> LiveLineages:
    if before.lost_since_s is not None:
        return LiveLineages(tree, known, before.lost_since_s)
    unproven_since_s = now_s if before.unproven_since_s is None else before.unproven_since_s
    if is_proven or now_s - unproven_since_s >= UNPROVEN_S:
        return LiveLineages(tree, known, now_s)
    return LiveLineages(tree, known, None, unproven_since_s)


def is_lost(tree: CommitTree, heads: frozenset[CommitId]) -> bool:
    """Whether somebody stands beside the preferred lineage and nobody on what it has after that fork."""
    if not tree.has_fork:
        return False
    best, held = best_head(tree), best_stood_on(tree, heads)
    fork = tree.common(best, held)
    path = tree.path(fork, best) if fork is not None else None
    if fork == held or not path:
        return False
    return all(tree.path(path[0].link.commit, head) is None for head in heads)
