"""Who looks after whom in a running exchange: whom a member pings, and whom it asks because others miss it (R12). Pure, read-only.

In a round of a few everybody pings everybody. With N members these are N (N - 1) questions each half second, which is most of what
two cores do with N = 16, and what one member knows of another is of use to few. So in larger rounds a member is looked after by the
leader, who decides, and by the two members on each side of it in the order of the proposal. These tell everybody whom they miss, and
everybody then asks the missed one itself before it believes that.

Rules: R12 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from protocol.ids import PeerId
from protocol.rounds.messages.messages import Proposal
from protocol.rounds.state import PeerView, RoundState

FULL_MESH: Final = 8
"""With more participants than this not everybody pings everybody."""

NUM_BESIDE: Final = 2
"""On each side of a member: four who look after it, twice as many as must agree that it is silent."""


def do_ping(state: RoundState, one: PeerId, other: PeerId) -> bool:
    """Whether these two participants of the running exchange ping each other, as far as it is known here who is missed."""
    return do_watch(state, one, other) or one in state.open.asked_since or other in state.open.asked_since


def do_watch(state: RoundState, one: PeerId, other: PeerId) -> bool:
    """Whether these two participants of the running exchange ping each other whoever is missed."""
    proposal = state.open.proposal
    if proposal is None or _is_small(proposal) or proposal.ballot.peer in (one, other):
        return True
    beside = _beside(proposal.participants, len(proposal.members))
    return other in beside.get(one, ()) or one in beside.get(other, ())


def whom_we_ping(state: RoundState, participants: Sequence[PeerId]) -> Sequence[PeerId]:
    """Those of these participants with whom `do_ping` is true of ourselves."""
    me = state.config.me.peer
    return [peer for peer in participants if do_ping(state, me, peer)]


def is_ours_to_ask(state: RoundState, peer: PeerId) -> bool:
    """Whether of us and a peer whom we ping it is we who ask, and the other one who answers: both are signs of life. The leader asks
    everybody, and of all others each those who come after it in the order of the proposal; who is not asked in time asks.
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
    """Whether the running exchange is so small that all ping all."""
    return state.open.proposal is None or _is_small(state.open.proposal)


def says_silent(state: RoundState, view: PeerView, peer: PeerId, now_s: float) -> bool:
    """Whether a member has said lately that it does not hear this peer: who says nothing any more may hear it again."""
    return peer in view.silent and now_s - view.told_at_s <= state.config.suspect_after_s


def missed_by_others(state: RoundState, now_s: float) -> tuple[PeerId, ...]:
    """Participants whom we do not watch, and whom some other member says that it misses."""
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


@functools.lru_cache(maxsize=64)
def _beside(participants: tuple[PeerId, ...], num_members: int) -> dict[PeerId, frozenset[PeerId]]:
    """Whom each member looks after, and who looks after each lender, which reduces and is no member: it pings nobody, and answers.
    What a mend adds changes nothing among members.
    """
    members, lenders = participants[:num_members], participants[num_members:]
    steps = [step for step in range(-NUM_BESIDE, NUM_BESIDE + 1) if step]
    beside = {
        peer: frozenset(members[(place + step) % len(members)] for step in steps) for place, peer in enumerate(members)
    }
    for number, lender in enumerate(lenders):
        first = number * len(steps)
        beside[lender] = frozenset(members[(first + step) % len(members)] for step in range(len(steps)))
    return beside
