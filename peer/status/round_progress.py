"""Progress of the next round and of the run, as seen by this peer. For display only; nothing is decided by it."""

from __future__ import annotations

from collections import deque

from protocol.estimates.eta import ETA_ROUNDS, ProgressPoint, time_left_s
from protocol.rounds.queries import due_at_tokens, due_within_s, ready_tokens
from protocol.rounds.state import RoundState


class EtaEstimator:
    """Estimates the rate of rounds. Missed rounds count with the next one, which is dated by its creation."""

    def __init__(self) -> None:
        self._points: deque[ProgressPoint] = deque(maxlen=ETA_ROUNDS)

    def committed(self, total_tokens: int, unix_s: float) -> None:
        """Note the newest round, after which the run has `total_tokens`. Uses calendar time, because other clocks stop while a
        machine sleeps.
        """
        self._points.append(ProgressPoint(total_tokens, unix_s))

    def begin_anew(self) -> None:
        """Start again on another lineage, where the same tokens may count twice or not at all."""
        self._points.clear()

    def left_s(self, total_tokens: int, target_tokens: int) -> float | None:
        """Seconds until the run is complete; None before two rounds were seen."""
        return time_left_s(tuple(self._points), total_tokens, target_tokens)


def round_progress(state: RoundState, now_s: float) -> dict[str, object]:
    """Status fields for the next round: the tokens that are ready, and the time waited so far. Empty once the run is over."""
    if state.run_tokens >= state.config.total_tokens:
        return {}
    return {
        "round_tokens_ready": ready_tokens(state, now_s),
        "round_target_tokens": due_at_tokens(state),
        "round_waited_s": max(0.0, now_s - state.committed_at_s),
        "round_longest_s": due_within_s(state),
    }


def stands_still(state: RoundState, now_s: float) -> bool:
    """Whether nobody trains, as far as is known here: a round was due long ago, and no peer has tokens for it. The rate of earlier
    rounds then tells nothing of the run's end.
    """
    is_under_way = 0 < state.run_tokens < state.config.total_tokens
    return is_under_way and ready_tokens(state, now_s) == 0 and now_s - state.committed_at_s > due_within_s(state)


def all_have(state: RoundState, index: int) -> bool:
    """Whether every live peer is known to have the commit of this index."""
    views = [v for v in state.peers.values() if v.head is not None and not v.lost and not v.left]
    return all(v.head is not None and v.head.index >= index for v in views)
