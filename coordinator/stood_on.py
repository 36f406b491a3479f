"""Which lineages count at the host: one on which no live peer stands, while others stand elsewhere, is with nobody who could give it.
Pure.

The host has certificates and no states. Were the preferred lineage's holders gone for good, it would tell of a head that nobody can go
on from, and wait for a last checkpoint that nobody can give, while the peers go on, and end, on another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from protocol.ids import HASH_BYTES, CommitId
from protocol.rounds.lineage import CommitTree, best_head, best_stood_on

PATIENCE_S: Final = 60.0
"""As long as its holders may be restarting, or be cut off from the host alone."""

UNPROVEN_S: Final = 240.0
"""How long heads that nobody has shown may hold that patience up: an honest peer's commits come with its next reports, and a claim
that stays a claim does not keep the host on a lost lineage for ever.
"""


@dataclass(frozen=True, slots=True)
class StoodOn:
    """Where live peers stand, as it was looked at last.

    Attributes:
        tree, heads: what it is of.
        lost_since_s: since when nobody has stood on the preferred lineage while somebody stood on another; None where that is not so.
        unproven_since_s: since when only heads that nobody has shown speak against that; None where none do.
        counted: with what lies behind them, the only commits that count now; none where all do.
    """

    tree: CommitTree | None = None
    heads: frozenset[CommitId] = frozenset()
    lost_since_s: float | None = None
    unproven_since_s: float | None = None
    counted: frozenset[CommitId] = frozenset()


def looked_at(before: StoodOn, tree: CommitTree, heads: frozenset[CommitId], now_s: float) -> StoodOn:
    """`heads`: where live peers say that they stand. Call about once a second. An unknown one may be on the preferred lineage for a
    while, unless that was lost already; of nobody's standing anywhere nothing follows.
    """
    known = heads & tree.nodes.keys()
    if not known:
        looked = replace(before, tree=tree)
    elif not _is_lost_now(before, tree, known):
        looked = StoodOn(tree, known)
    else:
        looked = _lost(before, tree, known, now_s, is_proven=known == heads)
    is_over = looked.lost_since_s is not None and now_s - looked.lost_since_s >= PATIENCE_S
    return replace(looked, counted=looked.heads if is_over else frozenset())


def restored(tree: CommitTree, counted: frozenset[CommitId], now_s: float) -> StoodOn:
    """As a former process of the host left it: what counted then, and what came after it, counts until somebody stands elsewhere."""
    return StoodOn(tree, counted, now_s - PATIENCE_S, counted=counted) if counted else StoodOn()


def to_bytes(counted: frozenset[CommitId]) -> bytes:
    """As the ledger keeps it."""
    return b"".join(sorted(counted))


def of_bytes(kept: bytes) -> frozenset[CommitId]:
    """What `to_bytes` made."""
    return frozenset(CommitId(kept[at : at + HASH_BYTES]) for at in range(0, len(kept), HASH_BYTES))


def _is_lost_now(before: StoodOn, tree: CommitTree, known: frozenset[CommitId]) -> bool:
    if before.tree is tree and before.heads == known:
        return before.lost_since_s is not None or before.unproven_since_s is not None
    return is_lost(tree, known)


def _lost(before: StoodOn, tree: CommitTree, known: frozenset[CommitId], now_s: float, *, is_proven: bool) -> StoodOn:
    if before.lost_since_s is not None:
        return StoodOn(tree, known, before.lost_since_s)
    unproven_since_s = now_s if before.unproven_since_s is None else before.unproven_since_s
    if is_proven or now_s - unproven_since_s >= UNPROVEN_S:
        return StoodOn(tree, known, now_s)
    return StoodOn(tree, known, None, unproven_since_s)


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
