"""The peers that take part in an attempt besides its leader, and absent peers whose contribution still counts (R7 and R16).

Rules: R7, R16 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protocol.frozen import replace
from protocol.ids import PeerId
from protocol.rounds.lineage.quorum import electorate
from protocol.rounds.messages.messages import Member, UnitHead
from protocol.rounds.peer_survey import with_views
from protocol.rounds.queries import caught_up, is_gone, is_suspected, ready_at
from protocol.rounds.state import NO_ROOT, Leading, PeerView, RoundState


def others_here(state: RoundState, led: Leading, now_s: float) -> tuple[PeerView, ...]:
    """Peers that are caught up and heard; in a lone attempt those that promised."""
    before = state.open.proposal
    others = tuple(
        view
        for view in caught_up(state, now_s)
        # a peer that fell silent in the last attempt would cost this one the same wait again
        if before is None or before.member(view.peer) != view.member or not is_suspected(state, view.peer, now_s)
    )
    if led.lone_voters:  # every member must ack, and only these promised
        others = tuple(view for view in others if view.peer in led.lone_voters)
    return _cohort(state, led, others)


def known_at_base(state: RoundState, peers: Iterable[PeerId]) -> RoundState:
    """Record that these peers stand on our head: they promised on it or sent bytes to a round on it, whatever their last heartbeat
    said.

    That heartbeat may be older than the commit, and a peer that pings another gets no heartbeat of it. Otherwise the next attempt
    would lack a quorum, or give a summed slice of a survivor to others. If a proposal is known, only its members count.
    """
    views = ((peer, _at_base(state, peer)) for peer in peers)
    known = {peer: view for peer, view in views if view is not None}
    return with_views(state, known) if known else state


def _at_base(state: RoundState, peer: PeerId) -> PeerView | None:
    """The view that follows for such a peer; None if nothing changes."""
    before, view, link = state.open.proposal, state.peers.get(peer), state.link
    if view is None:
        return None
    member, head = before.member(peer) if before is not None else view.member, view.head
    if member is None or view.member not in (None, member):
        return None
    if head is not None and head.index >= link.index:
        return None
    # its ready tokens are in its contribution's header; those in its heartbeat were before the commit
    proved = (head.state_commit, head.state_root) if head is not None else (link.commit, NO_ROOT)
    can_contribute = before is not None or head is None or head.can_contribute  # its leader found that members can
    now = UnitHead(state.config.unit, link.commit, link.index, link.total_tokens, 0, can_contribute, *proved)
    return replace(view, member=member, head=now)


def brought_before(state: RoundState, led: Leading, here: Mapping[PeerId, Member]) -> dict[PeerId, Member]:
    """Absent members of the last attempt whose contribution others may have: our own result counts it, or they are gone and nobody
    waits for them. This keeps their work and the sums already made, and no result is sent twice to a member that has it or its
    first part. They are asked to do nothing. A slice that lacks their chunks leaves them out.
    """
    before = state.open.proposal
    if before is None or led.lone_voters:
        return {}
    ours = [header for header in state.open.results.values() if header.reducer == state.config.me.peer]
    counted = {entry.peer for header in ours for entry in header.included}
    found = [m for m in before.members if m.peer not in here and (m.peer in counted or is_gone(state, m.peer))]
    return {member.peer: member for member in found[: max(0, state.config.max_members - len(here))]}


def _cohort(state: RoundState, led: Leading, others: tuple[PeerView, ...]) -> tuple[PeerView, ...]:
    """At most as many peers as a round may have, those with most ready tokens first, so that nobody waits for ever. Before them
    come as many of the base roster as must pass its vote on (`may_hand_on`).
    """
    room = state.config.max_members - 1
    if len(others) <= room:
        return others
    longest_first = sorted(others, key=lambda view: (-ready_at(view), view.peer))
    roster = set(electorate(state.link.roster, led.ballot, state.open.departures))
    voters = [view for view in longest_first if view.peer in roster][: len(roster) // 2 + 1]
    chosen = list(dict.fromkeys(view.peer for view in (*voters, *longest_first)))[:room]
    return tuple(view for view in others if view.peer in chosen)
