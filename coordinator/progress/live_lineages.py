"""The lineages that count at the host. A lineage without live holders does not count while live peers stand on another. Pure.

The host has certificates but no states. If all holders of the preferred lineage are gone, nobody can continue from its head. The
host must not report that head, nor wait for its last checkpoint, while the peers continue and finish on another lineage.

A lone commit is made when most voters are gone (R18). Then nobody who is live stands against it, and the host follows. A peer that
commits alone while the others are here must not end the run, nor give it a curve or a checkpoint. Peers refuse such commits likewise.

Rules: R18 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from protocol.ids import HASH_BYTES, CommitId, PeerId
from protocol.rounds.lineage.lineage import CommitTree, best_head, best_stood_on

PATIENCE_S: Final = 60.0
"""How long holders of the preferred lineage may be restarting, or be cut off from the host alone, in seconds."""

UNPROVEN_S: Final = 240.0
"""How long unproven heads may delay that patience, in seconds. An honest peer's commits arrive with its next reports. A claim that
is never proven must not keep the host on a lost lineage.
"""

STILL_S: Final = UNPROVEN_S
"""How long a claim to stand on the preferred lineage is trusted while that lineage does not grow and others do, in seconds. A real
holder sends its bytes to the other peers, and they move over to it. A liar can name any known commit, but cannot make the next one.
"""


@dataclass(frozen=True, slots=True)
class Still:
    """The preferred lineage does not grow while some peer stands on another.

    Attributes:
        best: head of the preferred lineage.
        since_s: since when it has been the head, monotonic seconds.
        first_index: index of the newest known commit outside that lineage at that time.
        index: index of the best head outside that lineage now.
        claimed: commits after the fork on which some peer claims to stand.
        waits_until_s: this is kept until then even if no peer is known to stand elsewhere, because after a start reports arrive one
            by one.
    """

    best: CommitId
    since_s: float
    first_index: int
    index: int
    claimed: frozenset[CommitId]
    waits_until_s: float = 0.0

    def doubted(self, now_s: float) -> frozenset[CommitId]:
        """The claimed commits that are not trusted: the preferred lineage has not grown for STILL_S while another has."""
        is_over = self.index > self.first_index and now_s - self.since_s >= STILL_S
        return self.claimed if is_over else frozenset()


@dataclass(frozen=True, slots=True)
class LiveLineages:
    """The positions of live peers at the last update.

    Attributes:
        tree: the commits that the other fields refer to.
        heads: heads of live peers that are known and trusted.
        known: all known heads of live peers.
        lost_since_s: since when all live peers stand off the preferred lineage; None while that is not so.
        unproven_since_s: since when only unproven heads contradict that; None while none do.
        counted: if not empty, only these commits and their ancestors count. If empty, all commits do.
        still: how long the preferred lineage has not grown while some peer stands on another; None while that is not so.
    """

    tree: CommitTree | None = None
    heads: frozenset[CommitId] = frozenset()
    lost_since_s: float | None = None
    unproven_since_s: float | None = None
    counted: frozenset[CommitId] = frozenset()
    known: frozenset[CommitId] = frozenset()
    still: Still | None = None


def looked_at(before: LiveLineages, tree: CommitTree, heads: frozenset[CommitId], now_s: float) -> LiveLineages:
    """Update with the heads that live peers report. Call about once a second.

    An unknown head may be on the preferred lineage, so it counts as such for UNPROVEN_S, unless the lineage was lost already. If no
    live peer reports a known head, nothing changes. A claim to stand on a preferred lineage that does not grow expires after
    STILL_S.
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
        return Still(best, now_s, max(_other_indices(tree, best).values()), index, claimed)
    return replace(was, index=index, claimed=claimed)


def _other_indices(tree: CommitTree, best: CommitId) -> dict[CommitId, int]:
    """Indices of the commits outside the lineage that ends at `best`."""
    preferred = {tree.root, best, *(node.link.parent for node in tree.path(tree.root, best) or ())}
    return {commit: node.link.index for commit, node in tree.nodes.items() if commit not in preferred}


@dataclass(frozen=True, slots=True)
class Seen:
    """When the host first saw each commit, from its ledger, and the time now, in seconds since 1970."""

    unix_s: Mapping[CommitId, int]
    now_unix_s: float


def restored(tree: CommitTree, counted: frozenset[CommitId], now_s: float, seen: Seen) -> LiveLineages:
    """The state that an earlier process of the host left. Its counted commits and their descendants count until a peer stands
    elsewhere.

    Without counted commits, the commits' first-seen times tell how long the preferred lineage has not grown. Otherwise a host that
    restarts often would trust a false claim forever.
    """
    if counted:
        return LiveLineages(tree, counted, now_s - PATIENCE_S, counted=counted)
    return LiveLineages(still=_still_since_seen(tree, now_s, seen)) if tree.has_fork else LiveLineages()


def _still_since_seen(tree: CommitTree, now_s: float, seen: Seen) -> Still | None:
    best = best_head(tree)
    others = _other_indices(tree, best)
    came = {commit: seen.unix_s[commit] for commit in (best, *others) if commit in seen.unix_s}
    if best not in came or len(came) < 2:
        return None
    since_unix_s = max(came[best], min(came[commit] for commit in others if commit in came))
    first_index = max(index for commit, index in others.items() if came.get(commit, since_unix_s) <= since_unix_s)
    # While the host was down nobody could show it anything, so at least one PATIENCE_S is left for that.
    still_s = min(max(0.0, seen.now_unix_s - since_unix_s), STILL_S - PATIENCE_S)
    return Still(best, now_s - still_s, first_index, first_index, frozenset(), now_s + PATIENCE_S)


def to_bytes(counted: frozenset[CommitId]) -> bytes:
    """The commits in the ledger's form."""
    return b"".join(sorted(counted))


def of_bytes(kept: bytes) -> frozenset[CommitId]:
    """Read what `to_bytes` wrote."""
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
    """Whether some live peer stands off the preferred lineage, and none on its commits after that fork."""
    if not tree.has_fork:
        return False
    best, held = best_head(tree), best_stood_on(tree, heads)
    fork = tree.common(best, held)
    path = tree.path(fork, best) if fork is not None else None
    if fork == held or not path:
        return False
    return all(tree.path(path[0].link.commit, head) is None for head in heads)


# --- lone commits ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerHeads:
    """The reported heads of live peers that have one.

    `are_all_heard`: peers had the time to report since the host started. Until then no new lone commit is followed.
    """

    of_peer: Mapping[PeerId, CommitId] = field(default_factory=lambda: MappingProxyType({}))
    are_all_heard: bool = True


def lone_refused(tree: CommitTree, head: CommitId, heads: PeerHeads) -> frozenset[CommitId]:
    """The lone commits that may not be followed now. Those behind `head`, which is followed, were accepted before.

    A voter stands elsewhere unless its head comes after some lone commit on the base: those who committed alone on their own could not
    reach the others either. A head that is not known here may come after anything. It counts as elsewhere until it is proven, unless
    its voter signed one of these commits.
    """
    if not tree.has_lone:
        return frozenset()
    behind = {tree.root, *(node.link.commit for node in tree.path(tree.root, head) or ())}
    on_base: dict[CommitId, list[CommitId]] = {}
    for commit, node in tree.nodes.items():
        if node.link.is_lone and node.link.parent is not None and commit not in behind:
            on_base.setdefault(node.link.parent, []).append(commit)
    refused: list[CommitId] = []
    for base, lone in on_base.items():
        if not heads.are_all_heard or _stand_most_elsewhere(tree, base, lone, heads):
            refused += lone
    return frozenset(refused)


def _stand_most_elsewhere(tree: CommitTree, base: CommitId, lone: list[CommitId], heads: PeerHeads) -> bool:
    voters = tree.nodes[base].link.roster
    signers = {peer for commit in lone for peer in tree.nodes[commit].link.roster}
    stands = [
        head
        for peer in voters
        if (head := heads.of_peer.get(peer)) is not None and (head in tree.nodes or peer not in signers)
    ]
    elsewhere = [head for head in stands if all(tree.path(commit, head) is None for commit in lone)]
    return 2 * len(elsewhere) > len(voters)


def without(tree: CommitTree, refused: frozenset[CommitId]) -> CommitTree:
    """The tree without these commits and all that come after them."""
    if not refused & tree.nodes.keys():
        return tree
    nodes = {tree.root: tree.nodes[tree.root]}
    for commit, node in tree.nodes.items():  # in the order of adding: parents come before their children
        if node.link.parent in nodes and commit not in refused:
            nodes[commit] = node
    parents = [node.link.parent for commit, node in nodes.items() if commit != tree.root]
    tip = tree.tip if tree.tip in nodes else max(nodes, key=lambda commit: nodes[commit].link.index)
    has_lone = any(node.link.is_lone for node in nodes.values())
    return CommitTree(tree.root, tip, MappingProxyType(nodes), len(set(parents)) < len(parents), has_lone)
