"""Commits whose bytes no live peer has: for a while nothing after them is followed (R24). Pure.

A lineage may be preferred by its certificates although all holders of its bytes are gone permanently. A peer that kept asking for
it would follow no other lineage either. So it is passed over for a while, longer each time while no live peer stands on it. It is
wanted again at once when a new peer comes, or one moves onto it.

Rules: R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Collection
from types import MappingProxyType
from typing import Final

from protocol.frozen import replace
from protocol.ids import CommitId, PeerId
from protocol.rounds.lineage.lineage import CommitTree
from protocol.rounds.queries import idle_patience_s, is_alive, may_hold
from protocol.rounds.state import RoundState, UnavailableCommit

FIRST_PAUSE_S: Final = 60.0
"""As long as the bytes were asked for."""

MAX_PAUSE_S: Final = 300.0
"""Upper bound on how long until a holder on another lineage is discovered."""

MAX_MISSING: Final = 64
"""Commits remembered at a time. The oldest are forgotten first, and asked for again."""


def passed_over(state: RoundState) -> frozenset[CommitId]:
    """Commits that are not followed now; commits after them are not followed either."""
    return frozenset(commit for commit, missing in state.missing.items() if missing.is_believed)


def looked_for(state: RoundState, commit: CommitId, now_s: float) -> RoundState:
    """No asked peer gave the bytes of `commit`. Pass over it if we, or a live peer, hold another branch; else there is nothing else
    to follow, and it is asked for again. A peer that stands on it has its state and failed to give it: that is remembered, and the
    peer is believed the next time.
    """
    known = state.missing.get(commit)
    if commit not in state.tree.nodes or (known is None and not _is_another_held(state, commit, now_s)):
        return state
    if known is None and _standing(state, commit) & _who_lives(state, now_s):
        doubted = UnavailableCommit(now_s, 0.0, frozenset(), frozenset(), is_believed=False)
        return _with_entry(state, commit, doubted)
    return with_missing(state, commit, now_s)


def with_missing(state: RoundState, commit: CommitId, now_s: float) -> RoundState:
    """All live peers were asked for the bytes of `commit`, and none has them."""
    known, asked, standing = state.missing.get(commit), _who_lives(state, now_s), _standing(state, commit)
    before_s = 0.0 if known is None or asked & standing else known.pause_s
    pause_s = max(FIRST_PAUSE_S, min(MAX_PAUSE_S, 2 * before_s))
    return _with_entry(state, commit, UnavailableCommit(now_s + pause_s, pause_s, asked, standing))


def reviewed(state: RoundState, now_s: float) -> RoundState:
    """Want commits again. A commit that a peer not yet asked may have is wanted at once. One whose pause is over is wanted when no
    other lineage is being fetched, since that may take hours and would be dropped for it.
    """
    changed = {
        commit: replace(missing, is_believed=False)
        for commit, missing in state.missing.items()
        if missing.is_believed and _is_worth_asking(state, commit, missing, now_s)
    }
    return _with(state, {**state.missing, **changed}) if changed else state


def without_found(state: RoundState) -> RoundState:
    """At a new head, forget commits behind it, which were found, and commits out of the tree."""
    tree, head = state.tree, state.link.commit
    left = {
        commit: missing
        for commit, missing in state.missing.items()
        if commit in tree.nodes and tree.path(commit, head) is None
    }
    return state if len(left) == len(state.missing) else _with(state, left)


def _is_worth_asking(state: RoundState, commit: CommitId, missing: UnavailableCommit, now_s: float) -> bool:
    if now_s >= missing.until_s and state.switching is None:
        return True
    return not (_who_lives(state, now_s) <= missing.asked and _standing(state, commit) <= missing.standing)


def _is_another_held(state: RoundState, commit: CommitId, now_s: float) -> bool:
    """Whether we, or a live peer, stand on a branch that neither leads to `commit` nor comes after it."""
    living = [state.peers[peer].head for peer in _who_lives(state, now_s)]
    heads = {state.link.commit, *(head.head for head in living if head is not None)}
    tree = state.tree
    return any(
        head in tree.nodes and tree.path(head, commit) is None and tree.path(commit, head) is None for head in heads
    )


def _who_lives(state: RoundState, now_s: float) -> frozenset[PeerId]:
    """Holders of the unit that were heard lately."""
    patience_s = idle_patience_s(state)
    return frozenset(peer for peer in state.peers if may_hold(state, peer) and is_alive(state, peer, now_s, patience_s))


def _standing(state: RoundState, commit: CommitId) -> frozenset[PeerId]:
    """Peers that last reported that they stand on `commit` or a later one."""
    heads = {peer: view.head.head for peer, view in state.peers.items() if view.head is not None}
    behind = _those_after(state.tree, commit, set(heads.values()))
    return frozenset(peer for peer, head in heads.items() if head in behind)


def _those_after(tree: CommitTree, commit: CommitId, heads: Collection[CommitId]) -> set[CommitId]:
    return {head for head in heads if head in tree.nodes and tree.path(commit, head) is not None}


def _with_entry(state: RoundState, commit: CommitId, entry: UnavailableCommit) -> RoundState:
    others = [(other, missing) for other, missing in state.missing.items() if other != commit]
    return _with(state, dict([*others[-MAX_MISSING + 1 :], (commit, entry)]))


def _with(state: RoundState, missing: dict[CommitId, UnavailableCommit]) -> RoundState:
    return replace(state, missing=MappingProxyType(missing))
