"""News of ours: a commit goes to everybody, where we stand to a few, and heartbeats go at intervals.

While nothing is open, heartbeats are frequent when a round is nearly due or was just committed, and rare in between: a distant round
needs nobody's attention, and live peers are found out when it comes near. Near is judged by the clock, and by the tokens: by others'
ready tokens as far as they are known, else by our own share of the target.

Rules: R4, R15 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import math
from typing import Final

from protocol.frozen import replace
from protocol.ids import CommitId, PeerId, short
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.messages import Certificate, Committed, Heartbeat, UnitHead
from protocol.rounds.messages.wire import commit_id, decode_record
from protocol.rounds.orders import Action, Send, SendHeartbeat
from protocol.rounds.queries import (
    base_opener,
    beat_peers,
    caught_up,
    due_at_tokens,
    due_within_s,
    is_gone,
    may_hold,
    ready_at,
    slowest_beat_s,
    whom_we_miss,
)
from protocol.rounds.schedule.asking_order import asking_order
from protocol.rounds.schedule.telling_tree import TREE_FROM, draw, told_by
from protocol.rounds.state import RoundState

NUM_SUCCESSORS: Final = 2
"""Peers that a member tells its new head by heartbeat (R15)."""

NUM_TOLD_OF_SILENCE: Final = 6
"""Peers that hear at once of a silent one from each that finds it out. Three times in turn, that is hundreds."""

BEATS_TO_OPENER: Final = 16
"""Peers that send a heartbeat to the next opener at a time while a round is far away. It bounds what the opener receives."""

REPORT_EVERY_S: Final = 0.5
"""After a commit BEATS_TO_OPENER peers report it to the next opener, and as many after each such pause. The voters come first, while
the opener still waits for them.
"""

_AT_COMMIT: Final = "we are at this commit now"

SHARE: Final = 0.25
"""Share of the time until the round is expected that lies between two heartbeats: news is late by no more than that."""

SINCE_SHARE: Final = 0.5
"""Share of the time since the last commit: every heartbeat reports the new head to a few peers."""

LEAST_SINCE_S: Final = 1.0
"""A shorter time says nothing of a speed."""


# --- commits ------------------------------------------------------------------------------------------------------------------


def reachable(state: RoundState) -> tuple[PeerId, ...]:
    """All other peers that need a certificate, in the order of ids. For a unit that is not the spine these are its holders and
    reducers.
    """
    proposal = state.open.proposal
    reducers = {part.reducer for part in proposal.slices} if proposal is not None else set()
    return tuple(
        p
        for p in sorted(state.peers)
        if not is_gone(state, p) and (state.config.is_spine or may_hold(state, p) or p in reducers)
    )


def is_told_by_tree(state: RoundState) -> bool:
    """Whether others than its leader may bring a certificate."""
    return len(state.peers) > TREE_FROM


def to_all(state: RoundState, certificate: Certificate, commit: CommitId) -> tuple[PeerId, ...]:
    """The peers that the leader of a commit tells of it at once: all that need it, but those that lent their upload."""
    lenders = _lenders(state, certificate)
    return _by_tree(state, [peer for peer in reachable(state) if peer not in lenders], commit, None)


def passed_on(state: RoundState, sender: PeerId, message: Committed, reason: str) -> tuple[Action, ...]:
    """A commit that we did not know came: tell it to those that its sender left to us (R15)."""
    certificate = message.certificate
    commit = commit_id(decode_record(certificate.record).parent, certificate.record)
    lenders = _lenders(state, certificate)
    told = _by_tree(state, [peer for peer in reachable(state) if peer not in lenders], commit, sender)
    return (Send(told, message, reason),) if told else ()


def _by_tree(state: RoundState, others: list[PeerId], commit: CommitId, teller: PeerId | None) -> tuple[PeerId, ...]:
    silent = [peer for peer in others if not may_hold(state, peer)]  # no machine of this unit runs there
    return told_by(state.config.me.peer, others, commit, teller=teller, silent=silent)


def _lenders(state: RoundState, certificate: Certificate) -> frozenset[PeerId]:
    """Peers that reduced without being members. The certificate makes such a peer forget its result, which others may still be
    fetching. A peer that saw no proposal takes all reducers for lenders whose own work the commit does not count.
    """
    proposal, record = state.open.proposal, decode_record(certificate.record)
    if proposal is not None:
        return frozenset(part.reducer for part in proposal.slices if proposal.member(part.reducer) is None)
    counted = {entry.peer for entry in record.contributors}
    return frozenset(part.reducer for part in record.slices if part.reducer not in counted)


def still_to_tell(state: RoundState, link: ChainLink, certificate: Certificate) -> tuple[PeerId, ...]:
    """The peers to which the certificate of the applied commit goes. If the proposal is ours these are all peers, or only the
    external reducers when the others were told already. Among many peers whoever made the certificate has told them.
    """
    if state.open.announced == link.commit:
        lenders = _lenders(state, certificate)
        return tuple(peer for peer in reachable(state) if peer in lenders)
    return reachable(state) if is_told_by_us(state, link.commit) and not is_told_by_tree(state) else ()


def is_told_by_us(state: RoundState, commit: CommitId) -> bool:
    """Whether others get this commit's certificate from us: it was sent already, or the proposal is ours."""
    proposal = state.open.proposal
    return state.open.announced == commit or (proposal is not None and proposal.ballot.peer == state.config.me.peer)


def head_report(state: RoundState, is_told: bool, now_s: float) -> tuple[RoundState, tuple[Action, ...]]:
    """Report our new head to the next opener, and to two successors in the order of ids unless we told everybody of the commit.

    The opener proposes to peers whose head it knows. Without this report a peer that is always last would miss round after round.
    Among many peers each waits for its turn with that. The successors ask for the commit if its certificate was lost. An external
    reducer hears of it from its leader alone.
    """
    me, everybody, opener = state.config.me.peer, reachable(state), base_opener(state)
    others = () if is_told else everybody
    after = [p for p in others if p > me] + [p for p in others if p < me]
    wait_s = _turn_to_report(state, everybody) * REPORT_EVERY_S if opener in state.peers else 0.0
    state = replace(state, pulse=replace(state.pulse, report_at_s=now_s + wait_s if wait_s else None))
    to = dict.fromkeys((*after[:NUM_SUCCESSORS], *((opener,) if opener in state.peers and not wait_s else ())))
    return state, (SendHeartbeat(tuple(to), own_heartbeat(state, now_s), True, _AT_COMMIT),) if to else ()


def _turn_to_report(state: RoundState, others: tuple[PeerId, ...]) -> int:
    """Our place among those that report to the next opener, BEATS_TO_OPENER at a time: voters first, since it waits for them, then in
    an order that each commit draws.
    """
    if len(others) <= BEATS_TO_OPENER:
        return 0
    me, commit, voters = state.config.me.peer, state.link.commit, frozenset(state.link.roster)
    mine = me not in voters, draw(commit, me)
    return sum((peer not in voters, draw(commit, peer)) < mine for peer in others) // BEATS_TO_OPENER


def late_report(state: RoundState, now_s: float) -> tuple[RoundState, tuple[Action, ...]]:
    """The report of our head to the next opener, once its turn has come."""
    at_s, opener = state.pulse.report_at_s, base_opener(state)
    if at_s is None or now_s < at_s:
        return state, ()
    state = replace(state, pulse=replace(state.pulse, report_at_s=None))
    if opener not in state.peers or opener == state.config.me.peer:
        return state, ()
    return state, (SendHeartbeat((opener,), own_heartbeat(state, now_s), True, _AT_COMMIT),)


def silence_told(state: RoundState, silent: PeerId, now_s: float) -> tuple[Action, ...]:
    """News for a few others, each peer's own choice of them: that a peer does not answer. They ask it, and tell others in turn."""
    others = (peer for peer in state.peers if peer != silent and not is_gone(state, peer))
    to = asking_order(state.config.me.peer, others, silent.encode())[:NUM_TOLD_OF_SILENCE]
    return (SendHeartbeat(to, own_heartbeat(state, now_s), True, f"{short(silent)} does not answer"),) if to else ()


# --- heartbeats while nothing is open (R4) ------------------------------------------------------------------------------------


def beat_interval_s(state: RoundState, now_s: float) -> float:
    """Seconds between two heartbeats while no exchange runs."""
    quick_s, slow_s = state.config.heartbeat_s, slowest_beat_s(state.config)
    if slow_s <= quick_s or _is_busy(state):
        return quick_s
    passed_s = SINCE_SHARE * (now_s - state.committed_at_s)
    if passed_s <= quick_s:
        return quick_s
    return max(quick_s, min(slow_s, passed_s, SHARE * until_due_s(state, now_s)))


def opener_beats(state: RoundState) -> int:
    """Every n-th heartbeat of a peer goes to the next opener too. So it gets at most `BEATS_TO_OPENER` at a time."""
    num_peers = len(state.peers) if state.config.is_spine else len(beat_peers(state))
    return max(1, -(-num_peers // BEATS_TO_OPENER))


def opener_patience_s(state: RoundState) -> float:
    """How long the next opener may be silent: it gets one in `opener_beats` heartbeats, and answers."""
    return (3 + opener_beats(state)) * slowest_beat_s(state.config) + state.config.suspect_after_s


def is_reported_to_opener(state: RoundState) -> bool:
    """Whether this heartbeat also goes to the next opener. Of many peers only some send one at a time, or what the opener hears would
    grow with their number.
    """
    return (state.pulse.num_heartbeats + sum(state.config.me.peer.encode())) % opener_beats(state) == 0


def _is_busy(state: RoundState) -> bool:
    """A round is due or under way, or no quorum is in reach: a peer that comes back must be heard at once. Or the run is over:
    everybody stays until all are known to have its last commit.
    """
    if state.run_tokens >= state.config.total_tokens:
        return True
    opened = state.open
    is_open = opened.proposal is not None or opened.leading is not None or bool(opened.asked)
    return is_open or opened.due_since_s is not None or state.alone_since_s is not None


def until_due_s(state: RoundState, now_s: float) -> float:
    """Seconds until the round is expected to be due; infinite where nothing brings it about."""
    if state.run_tokens >= state.config.total_tokens:
        return math.inf
    own, since_s = float(state.tokens_ready) if state.can_contribute else 0.0, state.committed_at_s
    num_here, known, ready, speeds = 1, 0.0, 0.0, 0.0
    for view in caught_up(state, now_s):  # one pass: every peer asks this at every tick, of all others
        tokens, heard_s = ready_at(view), view.heard_at_s
        speed = _speed(tokens, heard_s - since_s)
        num_here, known, speeds = num_here + 1, known + tokens, speeds + speed
        ready += tokens + speed * max(0.0, now_s - heard_s)
    if not own + known:
        return math.inf
    clock_s = since_s + due_within_s(state) - now_s
    due_at = due_at_tokens(state)
    own_speed = _speed(own, now_s - since_s)
    all_s = _until_s(due_at - own - ready, own_speed + speeds)
    share_s = _until_s(due_at / num_here - own, own_speed)
    return max(0.0, min(clock_s, all_s, share_s))


def _speed(tokens: float, seconds: float) -> float:
    return tokens / max(LEAST_SINCE_S, seconds)


def _until_s(tokens: float, tokens_per_s: float) -> float:
    if tokens <= 0:
        return 0.0
    return tokens / tokens_per_s if tokens_per_s > 0 else math.inf


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
        silent=whom_we_miss(state, now_s),
    )
