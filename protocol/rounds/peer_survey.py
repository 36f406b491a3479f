"""A summary of all other peers' views, kept up to date as they are heard. Pure.

Each tick asks whether the round is due and whether a quorum is in reach. Only a few peers are heard between two ticks, and looking
at all of them each time is slow in a large swarm. A `Survey` names the views and the commit that it summarises, and is ignored for
any others. So code that changes a state without updating it makes the next look slow, never wrong.
"""

from __future__ import annotations

from types import MappingProxyType

from protocol.frozen import replace
from protocol.ids import CommitId, PeerId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.state import PeerView, RoundState, Survey


def with_views(state: RoundState, views: dict[PeerId, PeerView]) -> RoundState:
    """The state with these views replaced, and with its survey as far as that still holds."""
    before, known = state.peers, state.survey
    peers = MappingProxyType(before | views)
    if known is None or known.peers is not before or known.commit != state.link.commit:
        return replace(state, peers=peers)
    link, tokens, voters = state.link, known.most_tokens, known.voters
    for peer, view in views.items():
        earlier = before.get(peer)
        tokens += _ready_with(view, link.commit) - (0 if earlier is None else _ready_with(earlier, link.commit))
        if peer in voters and not (view.heard_at_s >= known.heard_at_s and _may_vote(view, link)):
            voters = frozenset()
    survey = Survey(peers, link.commit, known.leaves, tokens, voters, known.heard_at_s)
    return replace(state, peers=peers, survey=survey)


def surveyed(state: RoundState, since_s: float) -> RoundState:
    """The state with a new survey, which takes peers heard after `since_s` as alive."""
    known = state.survey
    if known is None or known.peers is not state.peers or known.commit != state.link.commit:
        known = None
    elif (
        known.voters
        and known.leaves is state.open.leaves
        and known.voters.isdisjoint(state.open.voteless)
        and known.heard_at_s >= since_s
    ):
        return state
    voters, heard_at_s = voters_heard(state, since_s)
    is_majority = 2 * len(voters) > len(state.link.roster)
    most_tokens = known.most_tokens if known is not None else _most_tokens(state)
    seen = frozenset(voters) if is_majority else frozenset[PeerId]()
    survey = Survey(state.peers, state.link.commit, state.open.leaves, most_tokens, seen, heard_at_s)
    return replace(state, survey=survey)


def most_tokens_of_others(state: RoundState) -> int:
    """The most tokens that others can have ready for the round on our head, live or not."""
    known = state.survey
    if known is not None and known.peers is state.peers and known.commit == state.link.commit:
        return known.most_tokens
    return _most_tokens(state)


def voters_heard(state: RoundState, since_s: float) -> tuple[set[PeerId], float]:
    """Others of the base roster that were heard since then and may vote, at most just a majority of it, and when the first of them
    was heard.
    """
    peers, link, gone = state.peers, state.link, state.open.leaves.keys() | state.open.voteless
    voters, heard_at_s, majority = set[PeerId](), float("inf"), 1 + len(link.roster) // 2
    for peer in link.roster:
        view = peers.get(peer)
        if view is None or view.heard_at_s < since_s or peer in gone or not _may_vote(view, link):
            continue
        voters.add(peer)
        heard_at_s = min(heard_at_s, view.heard_at_s)
        if len(voters) >= majority:
            break
    return voters, heard_at_s


def _may_vote(view: PeerView, link: ChainLink) -> bool:
    """Whether a peer is not gone, and its votes count with its present disk. A peer that reports other units and not this one does
    not hold it: no votes of it will come.
    """
    member = view.member
    if view.lost or view.left:
        return False
    return member is None or (view.head is not None and link.may_vote(view.peer, member.incarnation))


def _most_tokens(state: RoundState) -> int:
    commit = state.link.commit
    return sum([_ready_with(view, commit) for view in state.peers.values()])


def _ready_with(view: PeerView, commit: CommitId) -> int:
    """Tokens of a peer that count for the round on a commit, if it is alive."""
    head = view.head
    if head is None or head.head != commit or not head.can_contribute or view.lost or view.left or view.member is None:
        return 0
    return head.tokens_ready
