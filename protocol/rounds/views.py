"""Questions about a round's state: who is alive, who is caught up, whether a round is due. Pure and read-only."""

from __future__ import annotations

from protocol.ids import PeerId
from protocol.rounds.messages import Heartbeat, UnitHead
from protocol.rounds.state import PeerView, RoundState


def is_alive(state: RoundState, peer: PeerId, now_s: float, patience_s: float) -> bool:
    """Heard within `patience_s` and not reset since; ourselves always."""
    if peer == state.config.me.peer:
        return True
    view = state.peers.get(peer)
    return view is not None and not view.lost and not view.left and now_s - view.heard_at_s <= patience_s


def idle_patience_s(state: RoundState) -> float:
    """While nothing is open heartbeats go to a few peers only, so silence means less: four of them, and the suspicion on top."""
    return 4 * state.config.heartbeat_s + state.config.suspect_after_s


def is_suspected(state: RoundState, peer: PeerId, now_s: float) -> bool:
    """A member of the running exchange that was reset, left, or fell silent for `suspect_after_s` since the exchange began."""
    if peer == state.config.me.peer:
        return False
    view = state.peers.get(peer)
    if view is None or view.lost or view.left:
        return True
    heard_at_s = max(view.heard_at_s, state.open.proposal_at_s)
    return now_s - heard_at_s > state.config.suspect_after_s


def caught_up(state: RoundState, now_s: float) -> tuple[PeerView, ...]:
    """Live peers (not ourselves) whose head is ours and who may contribute, sorted by peer id: hints, checked by what they send."""
    patience_s = idle_patience_s(state)
    return tuple(
        view
        for peer, view in sorted(state.peers.items())
        if view.member is not None
        and view.head is not None
        and view.head.head == state.link.commit
        and view.head.can_contribute
        and is_alive(state, peer, now_s, patience_s)
    )


def ready_tokens(state: RoundState, now_s: float) -> int:
    """Tokens ready at live, caught-up holders, ourselves included."""
    own = state.tokens_ready if state.can_contribute else 0
    return own + sum(view.head.tokens_ready for view in caught_up(state, now_s) if view.head is not None)


def is_due(state: RoundState, now_s: float) -> bool:
    """Ready tokens reach the target, or the longest interval has passed and there is anything to average (rule 5)."""
    if state.link.total_tokens >= state.config.total_tokens:
        return False
    ready = ready_tokens(state, now_s)
    if ready >= state.link.target_tokens:
        return True
    return ready > 0 and now_s - state.committed_at_s >= state.config.longest_interval_s


def own_head(state: RoundState) -> UnitHead:
    """Our entry of the heartbeat."""
    return UnitHead(
        unit=state.config.unit,
        head=state.link.commit,
        index=state.link.index,
        total_tokens=state.link.total_tokens,
        tokens_ready=state.tokens_ready,
        can_contribute=state.can_contribute and state.open.contribution_is_possible,
        state_commit=state.state_commit,
        state_root=state.state_root,
    )


def own_heartbeat(state: RoundState) -> Heartbeat:
    """Our heartbeat."""
    return Heartbeat(state.config.me, state.config.is_inbound_reachable, state.upload_bytes_per_s, (own_head(state),))
