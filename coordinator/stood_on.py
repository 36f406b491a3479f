"""Which lineages count at the host: one on which no live peer stands, while others stand elsewhere, is with nobody who could give it.
Pure.

The host has certificates and no states. Were the preferred lineage's holders gone for good, it would tell of a head that nobody can go
on from, and wait for a last checkpoint that nobody can give, while the peers go on, and end, on another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.ids import CommitId
from protocol.rounds.lineage import CommitTree, best_head, best_stood_on

PATIENCE_S: Final = 60.0
"""As long as its holders may be restarting, or be cut off from the host alone."""


@dataclass(frozen=True, slots=True)
class StoodOn:
    """Where live peers stand, as it was looked at last.

    Attributes:
        tree, heads: what it is of.
        lost_since_s: since when nobody has stood on the preferred lineage while somebody stood on another; None where that is not so.
        counted: with what lies behind them, the only commits that count now; none where all do.
    """

    tree: CommitTree | None = None
    heads: frozenset[CommitId] = frozenset()
    lost_since_s: float | None = None
    counted: frozenset[CommitId] = frozenset()


def looked_at(before: StoodOn, tree: CommitTree, heads: frozenset[CommitId], now_s: float) -> StoodOn:
    """`heads`: where live peers say that they stand. Call about once a second. An unknown one may be on the preferred lineage, unless
    that was lost already; of nobody's standing anywhere nothing follows.
    """
    known = heads & tree.nodes.keys()
    is_same = before.tree is tree and before.heads == known
    if not known or is_same:
        lost_since_s, known = before.lost_since_s, known or before.heads
    elif (known == heads or before.lost_since_s is not None) and is_lost(tree, known):
        lost_since_s = now_s if before.lost_since_s is None else before.lost_since_s
    else:
        lost_since_s = None
    if lost_since_s is None or now_s - lost_since_s < PATIENCE_S:
        return StoodOn(tree, known, lost_since_s)
    return StoodOn(tree, known, lost_since_s, known)


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
