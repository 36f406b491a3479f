"""Questions about a round's state: who is alive, who is caught up, whether a round is due, who votes. Pure and read-only.

Rules: R4, R5, R7, R12, R18, R23, R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from protocol.identity.standing import PeerStanding
from protocol.ids import CommitId, PeerId, short
from protocol.rounds.failure_probes import FULL_MESH, do_ping, found_silent, says_silent, whom_we_ping
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import Standing
from protocol.rounds.lineage.quorum import electorate, first_opener, is_quorum, opener_order
from protocol.rounds.lineage.rewind import counted_only, set_back_problem
from protocol.rounds.lineage.rule_numbers import bounds_strangers
from protocol.rounds.lineage.stranger_weights import weights_of
from protocol.rounds.messages.bounds import MAX_TOKENS
from protocol.rounds.messages.record import Ballot, CommitRecord
from protocol.rounds.peer_survey import most_tokens_of_others, voters_heard
from protocol.rounds.state import PeerView, RoundConfig, RoundState

NUM_WITNESSES: Final = 2
"""Silence counts when two others, asked meanwhile, do not hear the peer either (R12)."""

NUM_HEARTBEAT_PEERS: Final = 3
"""Constant fan-out of heartbeats while nothing is open (R4)."""

SLOWEST_BEAT_S: Final = 15.0
BEATS_AN_INTERVAL: Final = 20
"""Least number of heartbeats in the longest interval: a silent peer must be noticed within the round."""

LEAST_COMPARED: Final = 4
"""With this many pinged members or more, the silence of one is compared with that of the others."""

USUAL_SILENCE_PINGS: Final = 2
"""In ping intervals: a silence of this length is usual."""

STRAIN_FACTOR: Final = 4.0
THIN_SHARE: Final = 0.04
"""Share of a round's upload time by which the notice of a death may be late. Short uploads get no more than the usual patience."""
MOST_THIN_S: Final = 8.0
MOST_STRAIN_S: Final = 20.0
FEW_STRAIN_S: Final = 4.0
"""How patience grows with the silence of the peers that answer best: late answers are unevenly late. MOST_STRAIN_S caps the growth.
FEW_STRAIN_S is the cap for a peer that watches only a few members of a large round: there a late report costs less than a false
one.
"""

GONE_PATIENCE_S: Final = 10.0
"""Patience when every missing voter refuses connections (R18 says none). A broken link of our own looks the same, so allow the time
of a router's restart before we take everybody for dead.
"""


def is_alive(state: RoundState, peer: PeerId, now_s: float, patience_s: float) -> bool:
    """Heard within `patience_s`, and no connection refused since; ourselves always."""
    if peer == state.config.me.peer:
        return True
    view = state.peers.get(peer)
    return view is not None and not view.lost and not view.left and now_s - view.heard_at_s <= patience_s


def base_opener(state: RoundState) -> PeerId:
    """The owner of attempt 0 on our head."""
    link = state.link
    return first_opener(state.config.run_id, link.unit, link.index, link.roster)


def is_gone(state: RoundState, peer: PeerId) -> bool:
    """Lost or left, as far as we know."""
    view = state.peers.get(peer)
    return view is not None and (view.lost or view.left)


def beat_peers(state: RoundState) -> list[PeerId]:
    """Peers that get this unit's heartbeats in turn while nothing is open: everybody for the spine, holders for another unit. Peers
    that left are skipped by the caller, which need not look at every view for that.
    """
    return sorted(state.peers if state.config.is_spine else (peer for peer in state.peers if may_hold(state, peer)))


def slowest_beat_s(config: RoundConfig) -> float:
    """The longest pause between two heartbeats while nothing is open. The current pause is in
    protocol/rounds/telling.py.
    """
    return max(config.heartbeat_s, min(SLOWEST_BEAT_S, config.longest_interval_s / BEATS_AN_INTERVAL))


def idle_patience_s(state: RoundState) -> float:
    """How long silence means nothing while no round is open. Each peer sends heartbeats to a few others at a time, so allow a whole
    turn, three more heartbeats and the suspicion.
    """
    return patience_for_s(state, len(state.peers) if state.config.is_spine else len(beat_peers(state)))


def patience_for_s(state: RoundState, num_peers: int) -> float:
    """As `idle_patience_s`, where `num_peers` get heartbeats in turn."""
    turns = -(-num_peers // NUM_HEARTBEAT_PEERS)
    return (max(1, turns) + 3) * slowest_beat_s(state.config) + state.config.suspect_after_s


def silence_s(state: RoundState, peer: PeerId, now_s: float) -> float:
    """Seconds since a member of the running exchange was heard, or since the exchange or our questions to it began if that is
    later.
    """
    view = state.peers.get(peer)
    heard_at_s = view.heard_at_s if view is not None else 0.0
    return now_s - max(heard_at_s, state.open.proposal_at_s, state.open.asked_since.get(peer, 0.0))


def strain_s(state: RoundState, now_s: float) -> float:
    """How much longer than usual the best quarter of the peers that we ping is silent, times STRAIN_FACTOR: 0 in a healthy
    exchange, at most MOST_STRAIN_S. If nearly all are late, our line or a shared machine is slow, and nobody is suspected for that.
    It stays 0 if the peers that are in time are a quorum: they can go on without the others.
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
    """Uploads of this many seconds or more let silence last longer."""
    return state.config.suspect_after_s / THIN_SHARE


def thin_line_s(state: RoundState, view: PeerView) -> float:
    """How much longer silence may last where a thin line, ours or the other's, makes the round long: one packet lost behind bulk
    delays all answers. It is THIN_SHARE of the upload beyond the usual, at most MOST_THIN_S.
    """
    upload_s = max(state.exchange_s, view.exchange_s)
    return min(MOST_THIN_S, max(0.0, THIN_SHARE * upload_s - state.config.suspect_after_s))


def is_silent(state: RoundState, peer: PeerId, now_s: float) -> bool:
    """Whether others are asked for bytes before this peer. Outside of an exchange most peers are heard rarely. With less patience all
    that take no part in a round would ask the one that told them of its commit.
    """
    if state.open.proposal is None:
        return not is_alive(state, peer, now_s, idle_patience_s(state))
    return is_suspected(state, peer, now_s)


def is_suspected(state: RoundState, peer: PeerId, now_s: float) -> bool:
    """Whether a member of the running exchange refused a connection, left, or was silent for `suspect_after_s`. Two other members
    that we hear, or as many as there are, must not hear it either (R12). Add `strain_s` where nearly all are late, and
    `thin_line_s` on a thin line.
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
        and _is_member(state, other)  # an external reducer reports no silent peers
        and do_ping(state, other, peer)
        and (silence_s(state, other, now_s) <= limit_s / 2 or says_silent(state, state.peers[other], peer, now_s))
        and not _has_restarted(state, state.peers[other])  # its new process pings nobody in this exchange
    ]
    agreeing = sum(1 for other in witnesses if says_silent(state, state.peers[other], peer, now_s))
    return agreeing >= min(NUM_WITNESSES, len(witnesses))


def _is_member(state: RoundState, peer: PeerId) -> bool:
    return state.open.proposal is not None and state.open.proposal.member(peer) is not None


def _has_restarted(state: RoundState, view: PeerView) -> bool:
    """Whether the member answers from another process than the one that takes part, which is gone with its part of the exchange."""
    proposal = state.open.proposal
    entry = proposal.member(view.peer) if proposal is not None else None
    return entry is not None and view.member is not None and view.member.session > entry.session


def silent_members(state: RoundState, now_s: float) -> tuple[PeerId, ...]:
    """Peers that we do not hear. Our pings report them a little before we suspect them ourselves."""
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


def whom_we_miss(state: RoundState, now_s: float) -> tuple[PeerId, ...]:
    """The peers that our heartbeats report as silent: members of the running exchange, or others while nothing is open."""
    return silent_members(state, now_s) if state.open.proposal is not None else found_silent(state, now_s)


def _members(state: RoundState) -> tuple[PeerId, ...]:
    """The known peers of the running exchange: its members, and reducers that are no members."""
    proposal = state.open.proposal
    if proposal is None:
        return ()
    return tuple(peer for peer in proposal.participants if peer == state.config.me.peer or peer in state.peers)


def may_hold(state: RoundState, peer: PeerId) -> bool:
    """Whether a peer holds this unit, or has not reported what it holds."""
    view = state.peers.get(peer)
    return view is not None and (view.member is None or view.head is not None)


def standing_of(state: RoundState, peer: PeerId) -> PeerStanding:
    """A peer's standing, as its credential has it; a keeper's where nothing else was shown."""
    return state.barred.standings.get(peer, PeerStanding.KEEPER)


def trusted_peers(state: RoundState, peers: Iterable[PeerId]) -> list[PeerId]:
    """Those of these peers from whose tokens the weight cap follows: all but strangers, where strangers' weight is bounded."""
    if not bounds_strangers(state.link.rules):
        return list(peers)
    return [peer for peer in peers if standing_of(state, peer).may_reduce]


def may_reduce(state: RoundState, peer: PeerId) -> bool:
    """Whether we may give a peer a slice, as far as its earlier results and its standing tell (R7)."""
    is_fit = peer not in state.open.unfit and state.barred.no_slices_until.get(peer, 0) <= state.link.index
    return is_fit and standing_of(state, peer).may_reduce


def lenders(state: RoundState, now_s: float) -> tuple[PeerView, ...]:
    """Live, reachable peers that do not hold the unit and may be asked to reduce (R7). Those with twice the upload come first.
    Equals are ordered by the base, so that not every unit's opener asks the same few.
    """
    patience_s = patience_for_s(state, len(state.peers))  # they send heartbeats in the spine's turn, not in this unit's
    able = [
        view
        for peer, view in state.peers.items()
        if not may_hold(state, peer)
        and view.is_inbound_reachable
        and may_reduce(state, peer)
        and is_alive(state, peer, now_s, patience_s)
    ]
    drawn = {peer: rank for rank, peer in enumerate(_drawn_order(state, [view.peer for view in able]))}
    return tuple(sorted(able, key=lambda view: (-view.upload_bytes_per_s.bit_length(), drawn[view.peer])))


def _drawn_order(state: RoundState, peers: list[PeerId]) -> tuple[PeerId, ...]:
    return opener_order(state.config.run_id, state.link.unit, state.link.index, 0, peers)


def caught_up(state: RoundState, now_s: float) -> tuple[PeerView, ...]:
    """Live peers, without ourselves, that have our head and may contribute, sorted by peer id. These are hints, checked by what
    they send.
    """
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
        and view.peer not in state.barred.expelled
    ]
    allowed = counted_only(state.tree.behind(commit))
    if allowed is not None:
        kept = [view for view in views if view.peer in allowed]
        are_all_gone = not kept and state.config.me.peer not in allowed and may_be_lone(state, now_s)
        views = views if are_all_gone else kept
    return views if state.spine is None else [view for view in views if stands_with_us(state, view)]


def ready_at(view: PeerView) -> int:
    """Tokens that a peer reports as ready."""
    return view.head.tokens_ready if view.head is not None else 0


def stands_with_us(state: RoundState, view: PeerView) -> bool:
    """Whether a peer trains with our lineage of the spine, as far as it has reported. Deltas made with another spine do not fit."""
    if state.spine is None or view.spine_head is None:
        return True
    return state.spine.standing(view.spine_head) is not Standing.OTHER


def citation_problem(state: RoundState, record: CommitRecord | None) -> str:
    """Why a new record may not be acked: it counts a peer that a rewind sets back (R28), or is of another unit and does not cite the
    spine that we follow. Else a leader could cite what nobody knows, and any commit that cites the followed spine, one that it signed
    alone too, would come before the record and all that follows it (R23).
    """
    if problem := set_back_problem(state.tree.behind(state.link.commit), record):
        return problem
    if state.spine is None or record is None or state.spine.standing(record.spine) is Standing.FOLLOWED:
        return ""
    return f"it cites {short(record.spine)}; expected a commit of the spine that we follow"


def ready_tokens(state: RoundState, now_s: float) -> int:
    """Tokens ready at live, caught-up holders, ourselves included, of at most as many peers as a round may have. Else a larger run
    would find its next round due at once. Those of strangers count as they weigh: no claim of theirs opens rounds early.
    """
    peers, views = [state.config.me.peer], _caught_up(state, now_s)
    peers += [view.peer for view in views]
    ready = [state.tokens_ready if state.can_contribute else 0, *map(ready_at, views)]
    if bounds_strangers(state.link.rules):
        ready = weights_of(ready, [not standing_of(state, peer).may_reduce for peer in peers], MAX_TOKENS)
    return ready[0] + _most_of(state, ready[1:])


def _most_of(state: RoundState, others: Sequence[int]) -> int:
    """Sum of the largest of these token counts, for as many peers as a round may have besides ourselves."""
    if len(others) >= state.config.max_members:
        others = sorted(others, reverse=True)[: state.config.max_members - 1]
    return sum(others)


def until_first_unit(state: RoundState, now_s: float) -> int | None:
    """Tokens until the next round of the spine is due, negative when it is overdue. None where this unit is the spine or not
    staggered, or where a live peer has not reported its tokens on our spine head.
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
    """Seconds after the last commit at which the round is due at the latest."""
    return state.config.stagger.interval_s(state.config.longest_interval_s, state.link.index)


def is_over(state: RoundState) -> bool:
    """Whether all tokens of the run are committed, and this unit owes no round that the spine has had."""
    if state.run_tokens < state.config.total_tokens:
        return False
    return not state.config.is_in_step or state.spine is None or state.link.index >= state.spine.link.index


def is_due(state: RoundState, now_s: float) -> bool:
    """Whether ready tokens reach the target, or the longest interval has passed and there is anything to average (R5)."""
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
    """Whether these are a quorum of the base roster, without the peers that left on this base."""
    roster = electorate(state.link.roster, ballot, state.open.departures)
    return is_quorum(state.config.run_id, roster, votes)


def has_vote(state: RoundState, peer: PeerId) -> bool:
    """Whether a peer may ack and promise on this base, as far as we know: not if it left, or came back with a new disk."""
    if peer == state.config.me.peer:
        return state.may_vote
    view = state.peers.get(peer)
    member = view.member if view is not None else None
    if peer in state.open.leaves or peer in state.open.voteless:
        return False
    return member is None or state.link.may_vote(peer, member.incarnation)


def is_refused(state: RoundState, leader: PeerId, now_s: float) -> bool:
    """Whether a record of this leader broke a rule lately. Not for good: honest peers may have seen different things, and a quorum may
    need a leader that each of them refused once.
    """
    attempts = state.open.leaders.get(leader)
    at_s = None if attempts is None else attempts.refused_at_s
    return at_s is not None and now_s - at_s < state.config.longest_interval_s


def quorum_in_reach(state: RoundState, ballot: Ballot, now_s: float) -> bool:
    """Whether enough of the base roster is alive to commit; a voter need not be caught up in its training."""
    voters, _ = voters_heard(state, now_s - idle_patience_s(state))
    if 2 * len(voters) > len(state.link.roster):
        return True  # for any ballot: none of the peers that left is among them
    return is_base_quorum(state, ballot, {*voters, state.config.me.peer} if state.may_vote else voters)


def may_hand_on(state: RoundState, ballot: Ballot, members: Collection[PeerId], now_s: float) -> bool:
    """Whether a record of these members, who vote on the next round, may be made with a quorum's acks. They must include a quorum
    of the base roster. Else the vote could pass to a few, or to one peer that all hear and that hears nobody. If a quorum votes but
    cannot train for the whole patience, the few go on.
    """
    waited_s = now_s - state.committed_at_s
    is_over = waited_s >= state.config.longest_interval_s + state.config.lone_patience_s
    return is_over or is_base_quorum(state, ballot, members)


def may_be_lone(state: RoundState, now_s: float) -> bool:
    """Whether patience is over: no quorum was in reach for `lone_patience_s` of awake time (R18), or for GONE_PATIENCE_S when all
    missing voters refuse connections. Never while others are at work, or may be, whom we cannot hear.
    """
    if state.alone_since_s is None or state.barred.is_apart:
        return False
    waited_s = now_s - state.alone_since_s
    if waited_s >= state.config.lone_patience_s:
        return True
    patience_s = idle_patience_s(state)
    missing = [peer for peer in state.link.roster if not is_alive(state, peer, now_s, patience_s)]
    return waited_s >= GONE_PATIENCE_S and all(is_gone(state, peer) for peer in missing)


def lone_refused(state: RoundState, now_s: float) -> frozenset[CommitId]:
    """Lone commits on our head that nobody had a reason to make: more than half of its voters are here and may vote, ourselves
    included, and none of them stands on it. A process that has just started judges by voters that were here before (`_is_unproven`).
    One that slept counts everybody who did not sign as here, until all had the time to be heard.
    """
    tree, link = state.tree, state.link
    if not tree.has_lone:
        return frozenset()
    children = [node.link for node in tree.nodes.values() if node.link.parent == link.commit and node.link.is_lone]
    if now_s - state.pulse.started_at_s < max(GONE_PATIENCE_S, idle_patience_s(state)):
        return frozenset(child.commit for child in children if _is_unproven(state, child))
    return frozenset(child.commit for child in children if _are_most_voters_here(state, child, now_s))


def _is_unproven(state: RoundState, lone: ChainLink) -> bool:
    """Whether this process, which has just started, may not believe yet that no quorum was here when a lone commit was made: most
    voters may be without it, and one of them runs since before our head, or was not heard yet. If all of them have started since,
    they may have been away together, and their work would be done twice.
    """
    voters = [peer for peer in state.link.roster if has_vote(state, peer) and not is_gone(state, peer)]
    without = [peer for peer in voters if _is_without(state, peer, lone)]
    if 2 * len(without) <= len(state.link.roster):
        return False
    return any(peer != state.config.me.peer and not _started_after_head(state, peer) for peer in without)


def _started_after_head(state: RoundState, peer: PeerId) -> bool:
    """Whether a voter was heard from a later process than the one that our head's record counts."""
    view, record = state.peers.get(peer), state.link.record
    entry = record.contributor(peer) if record is not None else None
    return view is not None and view.member is not None and entry is not None and view.member.session > entry.session


def _are_most_voters_here(state: RoundState, lone: ChainLink, now_s: float) -> bool:
    patience_s = idle_patience_s(state)
    voters = [peer for peer in state.link.roster if has_vote(state, peer)]
    here = [peer for peer in voters if is_alive(state, peer, now_s, patience_s)]
    woke_at_s = state.pulse.woke_at_s
    if woke_at_s is not None and now_s - woke_at_s < GONE_PATIENCE_S:
        here = [peer for peer in voters if peer not in lone.roster]
    without = [peer for peer in here if _is_without(state, peer, lone)]
    return 2 * len(without) > len(state.link.roster)


def _is_without(state: RoundState, peer: PeerId, lone: ChainLink) -> bool:
    """Whether a voter does not stand on a lone commit. One that signed it does, also where its head is not known here: of a lineage
    that is not followed, fewer commits may be kept than lead to that head.
    """
    view = state.peers.get(peer)
    head = view.head.head if view is not None and view.head is not None else None
    if head is None or head not in state.tree.nodes:
        return peer == state.config.me.peer or peer not in lone.roster
    return state.tree.path(lone.commit, head) is None
