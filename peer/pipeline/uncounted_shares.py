"""Shares of lanes that no commit counts yet: R20 for a stage of a lane.

A share that a commit does not count goes into the next round. It is shifted to keep its distance to the parameters that it was
trained from. For example, a lane's member dies in an exchange: the other stages count the lane in that round. At the member's
stage the spare that took the seat contributes it to the next round. The share keeps its lane and round, so it counts only once
(protocol/rounds/messages/lane_parts.py).

Rules: R20 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from peer.pipeline.transport.lane_work import LaneShare
from protocol.ids import CommitId


@dataclass(frozen=True)
class ParameterMove:
    """The parameters of a commit and of a later one, (N,) each."""

    base: CommitId
    head: CommitId
    before_N: torch.Tensor
    after_N: torch.Tensor

    def of(self, share: LaneShare) -> LaneShare:
        """The share, shifted to have the same distance to the new parameters as to the old ones."""
        moved_N = share.theta_N + (self.after_N - self.before_N).to(share.theta_N.dtype)
        return replace(share, theta_N=moved_N)


class Anchors:
    """The stage's parameters, commit by commit, and their last move."""

    def __init__(self) -> None:
        self.move: ParameterMove | None = None
        """None if unknown: at the start, and after a state that no commit led to."""

        self._last: tuple[CommitId, torch.Tensor] | None = None

    def moved_to(self, head: CommitId, anchor_N: torch.Tensor) -> None:
        """Set the parameters of the next commit, (N,). The same parameters again change nothing; other parameters for the same
        commit mean a repaired state.
        """
        before = self._last
        if before is None or before[0] != head:
            self.move = None if before is None else ParameterMove(before[0], head, before[1], anchor_N)
        elif before[1] is not anchor_N:
            self.move = None
        self._last = head, anchor_N

    def is_behind(self, head: CommitId) -> bool:
        """Whether the parameters of this commit have not been set yet."""
        return self._last is not None and self._last[0] != head

    def forget(self) -> None:
        """Forget the last move: no commit leads from it to the next parameters."""
        self.move = self._last = None
