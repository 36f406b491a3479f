"""Who takes part in an attempt besides its leader, and who counts in it though it is not here any more (R7 and R16).

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
    """Who is caught up and heard; in a lone attempt those who promised."""
    before = state.open.proposal
    others = tuple(
        view
        for view in caught_up(state, now_s)
        # who fell silent in the attempt before would cost this one the same wait again
        if before is None or before.member(view.peer) != view.member or not is_suspected(state, view.peer, now_s)
    )
    if led.lone_voters:  # every member must ack, and only these promised
        others = tuple(view for view in others if view.peer in led.lone_voters)
    return _cohort(state, led, others)


def known_at_base(state: RoundState, peers: Iterable[PeerId]) -> RoundState:
    """Who promises on our head, or brings something to a round on it, stands there, whatever its last heartbeat said: short after a
    commit that may be of before it, and who pings somebody hears no heartbeat of it. Without this the next attempt stood back for want
    of a quorum, or gave a survivor's slice, summed already, to others. Of a proposal that is known its members count alone.
    """
    views = ((peer, _at_base(state, peer)) for peer in peers)
    known = {peer: view for peer, view in views if view is not None}
    return with_views(state, known) if known else state


def _at_base(state: RoundState, peer: PeerId) -> PeerView | None:
    """What is known of it then; None where that is nothing new."""
    before, view, link = state.open.proposal, state.peers.get(peer), state.link
    if view is None:
        return None
    member, head = before.member(peer) if before is not None else view.member, view.head
    if member is None or view.member not in (None, member):
        return None
    if head is not None and head.index >= link.index:
        return None
    # what it has ready is in its contribution's header; what its heartbeat told was before the commit
    proved = (head.state_commit, head.state_root) if head is not None else (link.commit, NO_ROOT)
    can_contribute = before is not None or head is None or head.can_contribute  # its leader found that members can
    now = UnitHead(state.config.unit, link.commit, link.index, link.total_tokens, 0, can_contribute, *proved)
    return replace(view, member=member, head=now)


def brought_before(state: RoundState, led: Leading, here: Mapping[PeerId, Member]) -> dict[PeerId, Member]:
    """Members of the attempt before who are not here any more, but whose contribution others may have: our own result counts it, or
    they are gone, so that nobody waits for them. So what they brought is not lost, sums that were made stay the same, and a result
    that a member has already, or the first part of it, is not sent to it again. They are asked to do nothing; a slice of which they
    have brought less leaves them out, for they are missed there.
    """
    before = state.open.proposal
    if before is None or led.lone_voters:
        return {}
    ours = [header for header in state.open.results.values() if header.reducer == state.config.me.peer]
    counted = {entry.peer for header in ours for entry in header.included}
    found = [m for m in before.members if m.peer not in here and (m.peer in counted or is_gone(state, m.peer))]
    return {member.peer: member for member in found[: max(0, state.config.max_members - len(here))]}


def _cohort(state: RoundState, led: Leading, others: tuple[PeerView, ...]) -> tuple[PeerView, ...]:
    """No more than a round may have, whose work waits longest: most tokens ready first, so that nobody waits for ever. Before them as
    many of the base roster as hand its vote on (`may_hand_on`).
    """
    room = state.config.max_members - 1
    if len(others) <= room:
        return others
    longest_first = sorted(others, key=lambda view: (-ready_at(view), view.peer))
    roster = set(electorate(state.link.roster, led.ballot, state.open.departures))
    voters = [view for view in longest_first if view.peer in roster][: len(roster) // 2 + 1]
    chosen = list(dict.fromkeys(view.peer for view in (*voters, *longest_first)))[:room]
    return tuple(view for view in others if view.peer in chosen)
