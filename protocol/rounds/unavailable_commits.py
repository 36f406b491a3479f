"""Commits whose bytes nobody who lives has: for a while nothing that comes after them is followed (R24). Pure.

A lineage may be preferred by its certificates, and everybody who had its bytes be gone for good. Who went on wanting it would follow
no other either. So it is passed over for a while, longer each time while nobody who lives stands on it, and wanted again at once when
somebody comes, or comes to stand on it.

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
"""As long as the bytes were looked for."""

MAX_PAUSE_S: Final = 300.0
"""Who has them on its disk and stands elsewhere is found so late at the latest."""

MAX_MISSING: Final = 64
"""Commits remembered at a time; of more the oldest are forgotten, and looked for again."""


def passed_over(state: RoundState) -> frozenset[CommitId]:
    """Commits that are not followed now, nor what comes after them."""
    return frozenset(commit for commit, missing in state.missing.items() if missing.is_believed)


def looked_for(state: RoundState, commit: CommitId, now_s: float) -> RoundState:
    """Nobody who was asked gave the bytes of `commit`: they are passed over from now on where somebody who lives, or we, hold another
    branch; else there is nothing to pass over to, and they are looked for again. Whoever stands on it has its state, and gave it to
    nobody for once: that is remembered, and believed the next time.
    """
    known = state.missing.get(commit)
    if commit not in state.tree.nodes or (known is None and not _is_another_held(state, commit, now_s)):
        return state
    if known is None and _standing(state, commit) & _who_lives(state, now_s):
        doubted = UnavailableCommit(now_s, 0.0, frozenset(), frozenset(), is_believed=False)
        return _with_entry(state, commit, doubted)
    return with_missing(state, commit, now_s)


def with_missing(state: RoundState, commit: CommitId, now_s: float) -> RoundState:
    """The bytes of `commit` were looked for with everybody who lives, and are with nobody."""
    known, asked, standing = state.missing.get(commit), _who_lives(state, now_s), _standing(state, commit)
    before_s = 0.0 if known is None or asked & standing else known.pause_s
    pause_s = max(FIRST_PAUSE_S, min(MAX_PAUSE_S, 2 * before_s))
    return _with_entry(state, commit, UnavailableCommit(now_s + pause_s, pause_s, asked, standing))


def reviewed(state: RoundState, now_s: float) -> RoundState:
    """What may be with somebody who was not asked is wanted again at once; what was passed over for long enough as soon as no other
    lineage is being brought here, which may take hours and would be left for it.
    """
    changed = {
        commit: replace(missing, is_believed=False)
        for commit, missing in state.missing.items()
        if missing.is_believed and _is_worth_asking(state, commit, missing, now_s)
    }
    return _with(state, {**state.missing, **changed}) if changed else state


def without_found(state: RoundState) -> RoundState:
    """At a new head: what lies behind it was found, and what is out of the tree concerns nobody."""
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
    """Whether somebody who lives, or we ourselves, stand on a branch that neither leads to `commit` nor comes after it."""
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
    """Who said last that it stands on `commit` or on what comes after it."""
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
