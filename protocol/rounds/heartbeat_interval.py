"""How often heartbeats go while nothing is open: often when a round is nearly due or was just committed, rarely in between.

A distant round needs nobody's attention: live peers are found out when it comes near. Near is judged by the clock, and by the
tokens: by others' ready tokens as far as they are known, else by our own share of the target.
"""

from __future__ import annotations

import math
from typing import Final

from protocol.rounds.queries import caught_up, due_at_tokens, due_within_s, opener_beats, ready_at, slowest_beat_s
from protocol.rounds.state import PeerView, RoundState

SHARE: Final = 0.25
"""Share of the time until the round is expected that lies between two heartbeats: news is late by no more than that."""

SINCE_SHARE: Final = 0.5
"""Share of the time since the last commit: every heartbeat reports the new head to a few peers."""

LEAST_SINCE_S: Final = 1.0
"""A shorter time says nothing of a speed."""


def beat_interval_s(state: RoundState, now_s: float) -> float:
    """Seconds between two heartbeats while no exchange runs."""
    quick_s, slow_s = state.config.heartbeat_s, slowest_beat_s(state.config)
    if slow_s <= quick_s or _is_busy(state):
        return quick_s
    passed_s = SINCE_SHARE * (now_s - state.committed_at_s)
    if passed_s <= quick_s:
        return quick_s
    return max(quick_s, min(slow_s, passed_s, SHARE * until_due_s(state, now_s)))


def is_reported_to_opener(state: RoundState, now_s: float) -> bool:
    """Whether this heartbeat also goes to the next opener. Every one does when the round is near. While it is distant, only some of
    many peers send one at a time, or the opener's traffic would grow with their number.
    """
    every = opener_beats(state)
    if every == 1 or _is_busy(state) or SHARE * until_due_s(state, now_s) <= state.config.heartbeat_s:
        return True
    return (state.pulse.num_heartbeats + sum(state.config.me.peer.encode())) % every == 0


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
    views = caught_up(state, now_s)
    own = float(state.tokens_ready) if state.can_contribute else 0.0
    known = own + sum(ready_at(view) for view in views)
    if not known:
        return math.inf
    since_s = state.committed_at_s
    clock_s = since_s + due_within_s(state) - now_s
    due_at = due_at_tokens(state)
    own_speed = _speed(own, now_s - since_s)
    reports = [(float(ready_at(view)), _speed(ready_at(view), view.heard_at_s - since_s), view) for view in views]
    ready = own + sum(tokens + speed * _age_s(view, now_s) for tokens, speed, view in reports)
    all_s = _until_s(due_at - ready, own_speed + sum(speed for _, speed, _ in reports))
    share_s = _until_s(due_at / (1 + len(views)) - own, own_speed)
    return max(0.0, min(clock_s, all_s, share_s))


def _speed(tokens: float, seconds: float) -> float:
    return tokens / max(LEAST_SINCE_S, seconds)


def _age_s(view: PeerView, now_s: float) -> float:
    return max(0.0, now_s - view.heard_at_s)


def _until_s(tokens: float, tokens_per_s: float) -> float:
    if tokens <= 0:
        return 0.0
    return tokens / tokens_per_s if tokens_per_s > 0 else math.inf
