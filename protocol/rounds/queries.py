"""Questions about a round's state: who is alive, who is caught up, whether a round is due, who votes. Pure and read-only.

Rules: R4, R5, R7, R12, R18 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from protocol.ids import PeerId
from protocol.rounds.failure_probes import FULL_MESH, do_ping, says_silent, whom_we_ping
from protocol.rounds.lineage.lineage import Standing
from protocol.rounds.lineage.quorum import electorate, is_quorum, opener_order
from protocol.rounds.messages.messages import Ballot, Heartbeat, UnitHead
from protocol.rounds.peer_survey import most_tokens_of_others, voters_heard
from protocol.rounds.state import PeerView, RoundConfig, RoundState

NUM_WITNESSES: Final = 2
"""Silence counts when two others, asked meanwhile, do not hear the peer either (R12)."""

NUM_HEARTBEAT_PEERS: Final = 3
"""Constant fan-out of heartbeats while nothing is open (R4)."""

BEATS_TO_OPENER: Final = 16
"""Of all others, while a round is far away: heartbeats of 20 bytes that it hears in the time between two of its own."""

SLOWEST_BEAT_S: Final = 15.0
BEATS_AN_INTERVAL: Final = 20
"""Heartbeats become no rarer than one in so much of the longest interval: who fell silent must be noticed within the round."""

LEAST_COMPARED: Final = 4
"""Members that are pinged, from which on the silence of one is compared with that of the others."""

USUAL_SILENCE_PINGS: Final = 2
"""Times as long as pings are apart: silence that is nothing unusual."""

STRAIN_FACTOR: Final = 4.0
THIN_SHARE: Final = 0.04
"""Of the upload that a round takes, for the notice of a death in it: 8 s where it takes 200 s (51M values of 4 bits at 1 Mbit/s), and
nothing more than usual up to 50 s.
"""
MOST_THIN_S: Final = 8.0
MOST_STRAIN_S: Final = 20.0
FEW_STRAIN_S: Final = 4.0
"""By how much patience grows with what even those who answer best take: answers that come late come unevenly late. The third is the
most of who looks after a few members of a large round, whose late word costs less than a false one. Of 32 members on two cores, whose
pings took up to 6.5 s, all lived.
"""

GONE_PATIENCE_S: Final = 10.0
"""Patience when every missing voter refuses connections (R18 says none). A broken link of our own looks just the same, so we
give it the time of a router's restart before we take everybody for dead.
"""


def is_alive(state: RoundState, peer: PeerId, now_s: float, patience_s: float) -> bool:
    """Heard within `patience_s`, and no connection refused since; ourselves always."""
    if peer == state.config.me.peer:
        return True
    view = state.peers.get(peer)
    return view is not None and not view.lost and not view.left and now_s - view.heard_at_s <= patience_s


def is_gone(state: RoundState, peer: PeerId) -> bool:
    """Lost or left, as far as we know."""
    view = state.peers.get(peer)
    return view is not None and (view.lost or view.left)


def beat_peers(state: RoundState) -> list[PeerId]:
    """Who hears from this unit's rounds in turn while nothing is open: of the spine everybody, of another unit its holders. Whose turn
    it is and who left is passed over then: with every beat each of a hundred views would have to be looked at for it.
    """
    return sorted(state.peers if state.config.is_spine else (peer for peer in state.peers if may_hold(state, peer)))


def slowest_beat_s(config: RoundConfig) -> float:
    """The longest pause between two heartbeats while nothing is open (protocol/rounds/heartbeat_interval.py says how long it is at
    a time).
    """
    return max(config.heartbeat_s, min(SLOWEST_BEAT_S, config.longest_interval_s / BEATS_AN_INTERVAL))


def idle_patience_s(state: RoundState) -> float:
    """While nothing is open each peer gives a sign to a few others at a time, so that all have had one after a whole turn; three
    heartbeats more, and the suspicion, before silence means anything.
    """
    return patience_for_s(state, len(state.peers) if state.config.is_spine else len(beat_peers(state)))


def patience_for_s(state: RoundState, num_peers: int) -> float:
    """As `idle_patience_s`, where so many peers hear in turn."""
    turns = -(-num_peers // NUM_HEARTBEAT_PEERS)
    return (max(1, turns) + 3) * slowest_beat_s(state.config) + state.config.suspect_after_s


def opener_beats(state: RoundState) -> int:
    """The next opener is sent one in so many heartbeats at least: others together send it no more than `BEATS_TO_OPENER` at a time."""
    num_peers = len(state.peers) if state.config.is_spine else len(beat_peers(state))
    return max(1, -(-num_peers // BEATS_TO_OPENER))


def opener_patience_s(state: RoundState) -> float:
    """The next opener is sent one in `opener_beats` heartbeats, and answers."""
    return (3 + opener_beats(state)) * slowest_beat_s(state.config) + state.config.suspect_after_s


def silence_s(state: RoundState, peer: PeerId, now_s: float) -> float:
    """How long a member of the running exchange has been silent towards us, since the exchange began, or since we began to ask."""
    view = state.peers.get(peer)
    heard_at_s = view.heard_at_s if view is not None else 0.0
    return now_s - max(heard_at_s, state.open.proposal_at_s, state.open.asked_since.get(peer, 0.0))


def strain_s(state: RoundState, now_s: float) -> float:
    """How much longer than usual the best quarter of those whom we ping is silent, times STRAIN_FACTOR: 0 in a healthy exchange, at
    most MOST_STRAIN_S. Where nearly all are late it is our line or the machine that many share, and nobody is suspected for that,
    unless those who are in time are a quorum by themselves: they can go on without the others.
    """
    me = state.config.me.peer
    watched = [peer for peer in whom_we_ping(state, _members(state)) if peer != me and not is_gone(state, peer)]
    if len(watched) < LEAST_COMPARED:
        return 0.0
    silences = sorted((silence_s(state, peer, now_s), peer) for peer in watched)
    late_s = silences[(len(silences) - 1) // 4][0] - USUAL_SILENCE_PINGS * state.config.ping_s
    proposal, limit_s = state.open.proposal, state.config.suspect_after_s
    if late_s <= 0.0 or proposal is None:
        return 0.0
    if is_base_quorum(state, proposal.ballot, {me, *(peer for silent_s, peer in silences if silent_s <= limit_s)}):
        return 0.0
    return min(MOST_STRAIN_S if len(watched) >= FULL_MESH else FEW_STRAIN_S, STRAIN_FACTOR * late_s)


def thin_from_s(state: RoundState) -> float:
    """Uploads that take so long, or longer, let silence last longer."""
    return state.config.suspect_after_s / THIN_SHARE


def thin_line_s(state: RoundState, view: PeerView) -> float:
    """How much longer silence may last where a thin line makes the round long, ours or the other's: one lost packet behind bulk holds
    all answers up for seconds there. THIN_SHARE of the upload beyond the usual, at most MOST_THIN_S.
    """
    upload_s = max(state.exchange_s, view.exchange_s)
    return min(MOST_THIN_S, max(0.0, THIN_SHARE * upload_s - state.config.suspect_after_s))


def is_suspected(state: RoundState, peer: PeerId, now_s: float) -> bool:
    """A member of the running exchange that refused a connection, left, or fell silent for `suspect_after_s`: towards us and towards
    two other members that we hear, or as many as there are (R12). Where nearly all are late, for `strain_s` longer,
    and on a thin line for `thin_line_s`.
    """
    if peer == state.config.me.peer:
        return False
    view = state.peers.get(peer)
    if view is None or view.lost or view.left or _has_restarted(state, view):
        return True
    limit_s = state.config.suspect_after_s
    silent_s = silence_s(state, peer, now_s)
    if silent_s <= limit_s or not do_ping(state, state.config.me.peer, peer):
        return False
    if silent_s <= limit_s + max(strain_s(state, now_s), thin_line_s(state, view)):
        return False
    witnesses = [
        other
        for other in _members(state)
        if other not in (peer, state.config.me.peer)
        and _is_member(state, other)  # who only reduces tells nobody whom it misses
        and do_ping(state, other, peer)
        and (silence_s(state, other, now_s) <= limit_s / 2 or says_silent(state, state.peers[other], peer, now_s))
        and not _has_restarted(state, state.peers[other])  # its new process pings nobody for this exchange
    ]
    agreeing = sum(1 for other in witnesses if says_silent(state, state.peers[other], peer, now_s))
    return agreeing >= min(NUM_WITNESSES, len(witnesses))


def _is_member(state: RoundState, peer: PeerId) -> bool:
    return state.open.proposal is not None and state.open.proposal.member(peer) is not None


def _has_restarted(state: RoundState, view: PeerView) -> bool:
    """Whether another process of a member answers than the one that takes part: that one is gone, with what it had of the exchange."""
    proposal = state.open.proposal
    entry = proposal.member(view.peer) if proposal is not None else None
    return entry is not None and view.member is not None and view.member.session > entry.session


def silent_members(state: RoundState, now_s: float) -> tuple[PeerId, ...]:
    """Whom we do not hear: said in our pings, a little before we suspect anybody ourselves."""
    if state.open.proposal is None:
        return ()
    limit_s = state.config.suspect_after_s - state.config.ping_s
    me = state.config.me.peer
    pinged = [peer for peer in whom_we_ping(state, _members(state)) if peer != me]
    silent = tuple(peer for peer in pinged if silence_s(state, peer, now_s) > limit_s)
    if not silent:
        return ()
    limit_s += strain_s(state, now_s)
    return tuple(peer for peer in silent if silence_s(state, peer, now_s) > limit_s)


def _members(state: RoundState) -> tuple[PeerId, ...]:
    """Who takes part in the running exchange and is known here: the members, and who reduces without being one."""
    proposal = state.open.proposal
    if proposal is None:
        return ()
    return tuple(peer for peer in proposal.participants if peer == state.config.me.peer or peer in state.peers)


def may_hold(state: RoundState, peer: PeerId) -> bool:
    """Whether a peer holds this unit, or has not told yet what it holds."""
    view = state.peers.get(peer)
    return view is not None and (view.member is None or view.head is not None)


def lenders(state: RoundState, now_s: float) -> tuple[PeerView, ...]:
    """Live, reachable peers that do not hold the unit and may be asked to reduce (R7): those with twice the upload before others,
    and among equals in an order that each base draws anew, so that not every unit's opener asks the same few.
    """
    patience_s = patience_for_s(state, len(state.peers))  # they give their signs in the spine's turn, not in ours
    able = [
        view
        for peer, view in state.peers.items()
        if not may_hold(state, peer)
        and view.is_inbound_reachable
        and peer not in state.open.unfit
        and is_alive(state, peer, now_s, patience_s)
    ]
    drawn = {peer: rank for rank, peer in enumerate(opener_order(state.link.commit, 0, [view.peer for view in able]))}
    return tuple(sorted(able, key=lambda view: (-view.upload_bytes_per_s.bit_length(), drawn[view.peer])))


def caught_up(state: RoundState, now_s: float) -> tuple[PeerView, ...]:
    """Live peers (not ourselves) whose head is ours and who may contribute, sorted by peer id: hints, checked by what they send."""
    return tuple(sorted(_caught_up(state, now_s), key=lambda view: view.peer))


def _caught_up(state: RoundState, now_s: float) -> list[PeerView]:
    commit, since_s = state.link.commit, now_s - idle_patience_s(state)
    views = [
        view
        for view in state.peers.values()
        if view.heard_at_s >= since_s
        and (head := view.head) is not None
        and head.head == commit
        and head.can_contribute
        and view.member is not None
        and not (view.lost or view.left)
    ]
    return views if state.spine is None else [view for view in views if stands_with_us(state, view)]


def ready_at(view: PeerView) -> int:
    """Tokens that a peer says it has ready."""
    return view.head.tokens_ready if view.head is not None else 0


def stands_with_us(state: RoundState, view: PeerView) -> bool:
    """Whether a peer trains with our lineage of the spine, as far as it has told: deltas made beside another one do not fit."""
    if state.spine is None or view.spine_head is None:
        return True
    return state.spine.standing(view.spine_head) is not Standing.OTHER


def ready_tokens(state: RoundState, now_s: float) -> int:
    """Tokens ready at live, caught-up holders, ourselves included: of as many of them as a round may have, or a run with more peers
    would find its next round due as soon as one is over.
    """
    own = state.tokens_ready if state.can_contribute else 0
    return own + _most_of(state, [ready_at(view) for view in _caught_up(state, now_s)])


def _most_of(state: RoundState, others: Sequence[int]) -> int:
    """What those others have who have most, of as many as a round may have beside ourselves."""
    if len(others) >= state.config.max_members:
        others = sorted(others, reverse=True)[: state.config.max_members - 1]
    return sum(others)


def until_first_unit(state: RoundState, now_s: float) -> int | None:
    """Tokens that are still to be trained until the next round of the spine is due, negative where it was; None where this unit is the
    spine or not staggered, or where somebody who is here has not told of it on the head that we know.
    """
    spine, stagger, own = state.spine, state.config.stagger, state.spine_ready
    if spine is None or own is None or not stagger.place:
        return None
    views = _caught_up(state, now_s)
    if any(view.spine_head != spine.head for view in views):
        return None
    ready = (own if state.can_contribute else 0) + _most_of(state, [view.spine_ready for view in views])
    return stagger.first.due_at(spine.link.target_tokens, spine.link.index) - ready


def due_at_tokens(state: RoundState) -> int:
    """Ready tokens at which the round on our head is due."""
    return state.due_tokens or state.config.stagger.due_at(state.link.target_tokens, state.link.index)


def due_within_s(state: RoundState) -> float:
    """Seconds after the last commit at which it is due at the latest."""
    return state.config.stagger.interval_s(state.config.longest_interval_s, state.link.index)


def is_over(state: RoundState) -> bool:
    """Whether all tokens of the run are committed, and this unit has no round of the spine's before it."""
    if state.run_tokens < state.config.total_tokens:
        return False
    return not state.config.is_in_step or state.spine is None or state.link.index >= state.spine.link.index


def is_due(state: RoundState, now_s: float) -> bool:
    """Ready tokens reach the target, or the longest interval has passed and there is anything to average (R5)."""
    if is_over(state):
        return False
    due_at, is_overdue = due_at_tokens(state), now_s - state.committed_at_s >= due_within_s(state)
    if not is_overdue and state.tokens_ready + most_tokens_of_others(state) < due_at:
        return False
    ready = ready_tokens(state, now_s)
    return ready >= due_at or (is_overdue and ready > 0)


def is_due_or_open(state: RoundState) -> bool:
    """Whether the round was due at the last tick, or is under way."""
    opened = state.open
    is_open = opened.proposal is not None or opened.leading is not None or opened.acked is not None
    return is_open or opened.due_since_s is not None


def is_base_quorum(state: RoundState, ballot: Ballot, votes: Collection[PeerId]) -> bool:
    """Whether these make a quorum of the base roster, without those who left on this base."""
    roster = electorate(state.link.roster, ballot, state.open.departures)
    return is_quorum(state.config.run_id, roster, votes)


def has_vote(state: RoundState, peer: PeerId) -> bool:
    """Whether a peer may ack and promise on this base, as far as we know: who left it, or came back on a new disk, does not."""
    if peer == state.config.me.peer:
        return state.may_vote
    view = state.peers.get(peer)
    member = view.member if view is not None else None
    if peer in state.open.leaves or peer in state.open.voteless:
        return False
    return member is None or state.link.may_vote(peer, member.incarnation)


def quorum_in_reach(state: RoundState, ballot: Ballot, now_s: float) -> bool:
    """Whether enough of the base roster is alive to commit; a voter need not be caught up in its training."""
    voters, _ = voters_heard(state, now_s - idle_patience_s(state))
    if 2 * len(voters) > len(state.link.roster):
        return True  # for any ballot: nobody of those who left is among them
    return is_base_quorum(state, ballot, {*voters, state.config.me.peer} if state.may_vote else voters)


def may_hand_on(state: RoundState, ballot: Ballot, members: Collection[PeerId], now_s: float) -> bool:
    """Whether a record of these members, who vote on the next round, may be made with a quorum's acks: only with a quorum of the base
    roster among them. Else the vote would pass to a few, or to one whom all hear and who hears nobody. Where a quorum votes but
    cannot train for the whole patience, the few go on.
    """
    waited_s = now_s - state.committed_at_s
    is_over = waited_s >= state.config.longest_interval_s + state.config.lone_patience_s
    return is_over or is_base_quorum(state, ballot, members)


def may_be_lone(state: RoundState, now_s: float) -> bool:
    """Patience is over: no quorum was in reach for `lone_patience_s` of awake time (R18), or for less when all who are missing
    refuse connections.
    """
    if state.alone_since_s is None:
        return False
    waited_s = now_s - state.alone_since_s
    if waited_s >= state.config.lone_patience_s:
        return True
    patience_s = idle_patience_s(state)
    missing = [peer for peer in state.link.roster if not is_alive(state, peer, now_s, patience_s)]
    return waited_s >= GONE_PATIENCE_S and all(is_gone(state, peer) for peer in missing)


def own_head(state: RoundState) -> UnitHead:
    """Our entry of the heartbeat."""
    return UnitHead(
        unit=state.config.unit,
        head=state.link.commit,
        index=state.link.index,
        total_tokens=state.link.total_tokens,
        tokens_ready=state.tokens_ready,
        can_contribute=state.can_contribute,
        state_commit=state.state_commit,
        state_root=state.state_root,
    )


def own_heartbeat(state: RoundState, now_s: float) -> Heartbeat:
    """Our heartbeat."""
    return Heartbeat(
        state.config.me,
        state.config.is_inbound_reachable,
        state.upload_bytes_per_s,
        (own_head(state),),
        exchange_ms=min(round(state.exchange_s * 1000), (1 << 32) - 1),
        silent=silent_members(state, now_s),
    )
