"""Which members probe each other in a running exchange, and which they probe because others miss them (R12). Pure, read-only.

In a small round everybody pings everybody. With N members these are N (N - 1) questions at each ping interval, too many for a
larger round, and of little use there. So in larger rounds a member is watched by the leader, which decides, and by its neighbours.
These are the two members on each side of it in the order of the proposal. Neighbours report to everybody which members they miss.
Everybody then probes a missed member itself before it believes the report.

While nothing is open, each peer of many hears from any other rarely. So a peer that answers two heartbeats in a row with nothing is
named in the heartbeats of the peer that sent them, to a few others at once, and everybody who hears that asks it, too.

Rules: R4, R12 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from protocol.frozen import replace
from protocol.ids import PeerId
from protocol.rounds.messages.messages import Proposal
from protocol.rounds.state import PeerView, RoundState

FULL_MESH: Final = 8
"""With more participants than this, not everybody pings everybody."""

FEW: Final = 16
"""With at most so many others nothing is said of silent peers while nothing is open: each is heard every few heartbeats."""

TOLD_FOR_S: Final = 60.0
"""Heartbeats say so long that a peer answers nothing: three of the longest pauses between two of them and some."""

REPORT_VALID_S: Final = 20.0
MOST_TOLD: Final = 8
"""Peers that one heartbeat reports as silent while nothing is open, the latest found. It bounds what a false report costs others."""

NUM_BESIDE: Final = 2
"""Watchers on each side of a member: four in all, twice as many as must agree that it is silent."""


def do_ping(state: RoundState, one: PeerId, other: PeerId) -> bool:
    """Whether these two participants of the running exchange ping each other, given who is reported as missed."""
    return do_watch(state, one, other) or one in state.open.asked_since or other in state.open.asked_since


def do_watch(state: RoundState, one: PeerId, other: PeerId) -> bool:
    """Whether these two participants of the running exchange ping each other, whoever is missed."""
    proposal = state.open.proposal
    if proposal is None or _is_small(proposal) or proposal.ballot.peer in (one, other):
        return True
    watched = _watched_by_member(proposal.participants, len(proposal.members))
    return other in watched.get(one, ()) or one in watched.get(other, ())


def whom_we_ping(state: RoundState, participants: Sequence[PeerId]) -> Sequence[PeerId]:
    """Those of these participants that we ping, by `do_ping`."""
    me = state.config.me.peer
    return [peer for peer in participants if do_ping(state, me, peer)]


def is_ours_to_ask(state: RoundState, peer: PeerId) -> bool:
    """Whether we are to ping this peer and it answers, rather than the reverse: both are signs of life. The leader asks everybody.
    Any other peer asks those after it in the order of the proposal. A peer that is not asked in time asks.
    """
    proposal, me = state.open.proposal, state.config.me.peer
    if proposal is None or proposal.ballot.peer == me or not do_watch(state, me, peer):
        return True
    members = [member.peer for member in proposal.members]
    if peer not in members or me not in members:
        return True
    if proposal.ballot.peer == peer:
        return False
    ahead = (members.index(peer) - members.index(me)) % len(members)
    return 2 * ahead < len(members) or (2 * ahead == len(members) and me < peer)


def is_everybody_pinged(state: RoundState) -> bool:
    """Whether the running exchange is so small that everybody pings everybody."""
    return state.open.proposal is None or _is_small(state.open.proposal)


def says_silent(state: RoundState, view: PeerView, peer: PeerId, now_s: float) -> bool:
    """Whether a member reported lately that it does not hear this peer. An old report does not count: it may hear the peer again."""
    return peer in view.silent and now_s - view.reported_at_s <= state.config.suspect_after_s


def missed_by_others(state: RoundState, now_s: float) -> tuple[PeerId, ...]:
    """Participants that we do not watch and that some other member reports as missed."""
    proposal, me = state.open.proposal, state.config.me.peer
    if proposal is None or _is_small(proposal):
        return ()
    views = [view for member in proposal.members if (view := state.peers.get(member.peer)) is not None and view.silent]
    if not views:
        return ()
    return tuple(
        peer
        for peer in proposal.participants
        if peer != me and not do_watch(state, me, peer) and any(says_silent(state, view, peer, now_s) for view in views)
    )


def _is_small(proposal: Proposal) -> bool:
    return len(proposal.participants) <= FULL_MESH


# --- while nothing is open ----------------------------------------------------------------------------------------------------


def is_large(state: RoundState) -> bool:
    """Whether so many peers are known that each hears most others rarely, and needs others' word to notice a death in time (R4)."""
    return len(state.peers) > FEW


def silent_noted(state: RoundState, peer: PeerId, now_s: float) -> RoundState:
    """The state with a peer that answers no heartbeats. Heartbeats say so for TOLD_FOR_S."""
    known = {other: at_s for other, at_s in state.barred.silent_since.items() if now_s - at_s <= TOLD_FOR_S}
    known.pop(peer, None)
    return replace(state, barred=replace(state.barred, silent_since=MappingProxyType({**known, peer: now_s})))


def _is_known_silent(state: RoundState, view: PeerView) -> bool:
    at_s = state.barred.silent_since.get(view.peer)
    return at_s is not None and view.heard_at_s < at_s


def found_silent(state: RoundState, now_s: float) -> tuple[PeerId, ...]:
    """Peers that our heartbeats report as silent while nothing is open here: we found it out lately, and have not heard them since."""
    found = [
        peer
        for peer, at_s in state.barred.silent_since.items()
        if now_s - at_s <= TOLD_FOR_S and (view := state.peers.get(peer)) is not None and _is_known_silent(state, view)
    ]
    return tuple(found[-MOST_TOLD:])


def missed_while_idle(state: RoundState, now_s: float) -> tuple[PeerId, ...]:
    """Peers that others report as silent while nothing is open here, and that we have not heard since that report. We ask them
    ourselves, so nobody can talk another peer dead.
    """
    if state.open.proposal is not None or not is_large(state):
        return ()
    named: dict[PeerId, None] = {}
    reporters = [view for view in state.peers.values() if view.silent]  # few, of all that are there
    for reporter in reporters:
        if now_s - reporter.reported_at_s > REPORT_VALID_S:
            continue
        for peer in reporter.silent[:MOST_TOLD]:
            view = state.peers.get(peer)
            if view is not None and view.heard_at_s < reporter.reported_at_s and not _is_known_silent(state, view):
                named[peer] = None
    return tuple(named)


@functools.lru_cache(maxsize=64)
def _watched_by_member(participants: tuple[PeerId, ...], num_members: int) -> dict[PeerId, frozenset[PeerId]]:
    """The peers that each member watches, and the watchers of each external reducer. Such a reducer pings nobody, and answers.
    Reducers added by a mend change nothing among the members.
    """
    members, lenders = participants[:num_members], participants[num_members:]
    steps = [step for step in range(-NUM_BESIDE, NUM_BESIDE + 1) if step]
    watched = {
        peer: frozenset(members[(place + step) % len(members)] for step in steps) for place, peer in enumerate(members)
    }
    for number, lender in enumerate(lenders):
        first = number * len(steps)
        watched[lender] = frozenset(members[(first + step) % len(members)] for step in range(len(steps)))
    return watched
