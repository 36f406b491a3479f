"""Time and signs of life: ticks, heartbeats, who is heard, who is gone (rules 4 and 12)."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from protocol.ids import PeerId, short
from protocol.rounds import leading
from protocol.rounds.state import (
    Action,
    DropMember,
    PeersListed,
    PeerView,
    RoundState,
    SendHeartbeat,
    Step,
    Ticked,
)
from protocol.rounds.views import is_suspected, own_heartbeat

NUM_HEARTBEAT_PEERS: Final = 3
"""Constant fan-out of heartbeats (rule 4)."""


def ticked(state: RoundState, event: Ticked, now_s: float) -> Step:
    """Time passed: heartbeats, suspicions, and the opener's own deadlines."""
    if event.lag_s > 0:
        state = _forgive(state, event.lag_s)
    state = replace(state, ticked_at_s=now_s)
    state, beats = _heartbeats(state, now_s)
    state, drops = _drop_suspects(state, now_s)
    led = leading.tick(state, now_s)
    return Step(led.state, (*beats, *drops, *led.actions), led.reason)


def _forgive(state: RoundState, lag_s: float) -> RoundState:
    """We slept: nobody else was silent in that time (rounds.md B7)."""
    peers = {peer: replace(view, heard_at_s=view.heard_at_s + lag_s) for peer, view in state.peers.items()}
    opened = state.open
    lead = opened.leading
    return replace(
        state,
        peers=MappingProxyType(peers),
        committed_at_s=state.committed_at_s + lag_s,
        open=replace(
            opened,
            proposal_at_s=opened.proposal_at_s + lag_s,
            due_since_s=None if opened.due_since_s is None else opened.due_since_s + lag_s,
            leading=None if lead is None else replace(lead, deadline_s=lead.deadline_s + lag_s),
        ),
    )


def _heartbeats(state: RoundState, now_s: float) -> tuple[RoundState, tuple[Action, ...]]:
    in_exchange = state.open.exchange is not None and state.open.proposal is not None
    interval_s = state.config.ping_s if in_exchange else state.config.heartbeat_s
    if now_s - state.heartbeat_at_s < interval_s - 1e-9:
        return state, ()
    targets = _heartbeat_targets(state)
    state = replace(state, heartbeat_at_s=now_s, num_heartbeats=state.num_heartbeats + 1)
    return state, (SendHeartbeat(targets, own_heartbeat(state)),) if targets else ()


def _heartbeat_targets(state: RoundState) -> tuple[PeerId, ...]:
    """The members of a running exchange, all of them; else the next opener and a rotating few."""
    me = state.config.me.peer
    if state.open.exchange is not None and state.open.proposal is not None:
        return tuple(m.peer for m in state.open.proposal.members if m.peer != me and not is_gone(state, m.peer))
    others = [peer for peer in sorted(state.peers) if not state.peers[peer].left]
    if not others:
        return ()
    begin = state.num_heartbeats * NUM_HEARTBEAT_PEERS % len(others)
    rotating = [others[(begin + i) % len(others)] for i in range(min(NUM_HEARTBEAT_PEERS, len(others)))]
    opener = leading.expected_opener(state)
    return tuple(dict.fromkeys([opener, *rotating] if opener in state.peers else rotating))


def is_gone(state: RoundState, peer: PeerId) -> bool:
    """Lost or left, as far as we know."""
    view = state.peers.get(peer)
    return view is not None and (view.lost or view.left)


def _drop_suspects(state: RoundState, now_s: float) -> tuple[RoundState, tuple[Action, ...]]:
    proposal = state.open.proposal
    if proposal is None or state.open.exchange is None:
        return state, ()
    return state, tuple(
        DropMember(m.peer, "lost" if is_gone(state, m.peer) else "silent")
        for m in proposal.members
        if is_suspected(state, m.peer, now_s)
    )


def heard(state: RoundState, peer: PeerId, now_s: float) -> RoundState:
    """A sign of life."""
    view = state.peers.get(peer)
    if view is None:
        if peer == state.config.me.peer:
            return state
        view = PeerView(peer, now_s)
    return with_view(state, replace(view, heard_at_s=now_s, lost=False))


def with_view(state: RoundState, view: PeerView) -> RoundState:
    """The state with what we know of one peer replaced."""
    return replace(state, peers=MappingProxyType({**state.peers, view.peer: view}))


def peer_lost(state: RoundState, peer: PeerId, now_s: float) -> Step:
    """A connection was refused or reset: a death at once, no waiting."""
    view = state.peers.get(peer)
    if view is None or view.lost:
        return Step(state)
    state = with_view(state, replace(view, lost=True))
    proposal = state.open.proposal
    drops: tuple[Action, ...] = ()
    if proposal is not None and state.open.exchange is not None and proposal.member(peer) is not None:
        drops = (DropMember(peer, "lost"),)
    led = leading.tick(state, now_s)
    return Step(led.state, (*drops, *led.actions), led.reason or f"{short(peer)} is gone: connection refused or reset")


def peers_listed(state: RoundState, event: PeersListed, now_s: float) -> Step:
    """The directory names peers; whom we never heard starts out silent."""
    known = dict(state.peers)
    for peer in event.peers:
        if peer != state.config.me.peer and peer not in known:
            # listed is not heard: it starts out as silent, and the first heartbeat or answer makes it live
            known[peer] = PeerView(peer, now_s - 3600.0)
    return Step(replace(state, peers=MappingProxyType(known)))
