"""The spine at a peer that does not hold it: it follows the spine's records alone, by the rules of its holders (R23). Pure.

Without the bytes nobody can tell whether a lineage is available at all. So only commits on which a holder says it stands count.

Rules: R22, R23 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from protocol.identity.identity import Verifier
from protocol.ids import CommitId, PeerId, RunId
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.lineage import CommitTree, SpineView, best_stood_on
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.wire import decode_record


@dataclass(frozen=True, slots=True)
class FollowedSpine:
    """Verified commits of the spine, the followed one, and where its holders last said they stand."""

    tree: CommitTree
    head: CommitId
    holders: Mapping[PeerId, CommitId] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def view(self) -> SpineView:
        """The view for the rounds of other units."""
        return SpineView(self.head, self.tree)


def heard(state: FollowedSpine, peer: PeerId, head: CommitId) -> FollowedSpine:
    """A holder reported its head."""
    if state.holders.get(peer) == head:
        return state
    return replace(state, holders=MappingProxyType({**state.holders, peer: head}))


def only_holders(state: FollowedSpine, peers: Collection[PeerId]) -> FollowedSpine:
    """The state without the reports of peers that are gone."""
    holders = {peer: head for peer, head in state.holders.items() if peer in peers}
    return state if len(holders) == len(state.holders) else replace(state, holders=MappingProxyType(holders))


def with_certificates(
    state: FollowedSpine, certificates: Sequence[Certificate], *, verifier: Verifier, run_id: RunId
) -> tuple[FollowedSpine, bool]:
    """The state with these commits, oldest first, and whether all of them had a known parent.

    Raises:
        RemoteProtocolError, VersionError: one of them proves nothing; the earlier ones are not kept either.
    """
    tree = state.tree
    for certificate in certificates:
        parent = tree.nodes.get(decode_record(certificate.record).parent)
        if parent is None:
            return replace(state, tree=tree), False
        tree = tree.add(verify_certificate(certificate, parent.link, verifier=verifier, run_id=run_id), certificate)
    return replace(state, tree=tree), True


def choose(state: FollowedSpine) -> CommitId:
    """The commit to follow: the best by R22 among those on which a holder stands, and our own. Ours does not count if every holder
    is known to stand on other lineages: then nobody could give the bytes of ours.
    """
    tree, head = state.tree, state.head
    stood_on = {stands for stands in state.holders.values() if stands in tree.nodes}
    is_ours_with_somebody = any(
        commit not in tree.nodes or tree.path(commit, head) is not None or tree.path(head, commit) is not None
        for commit in state.holders.values()
    )
    if is_ours_with_somebody or not stood_on:
        stood_on.add(head)
    if all(tree.path(commit, head) is not None for commit in stood_on):
        return head
    return best_stood_on(tree, stood_on)
