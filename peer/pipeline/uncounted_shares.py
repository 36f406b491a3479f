"""Shares of lanes that no commit counts yet: R20 for a stage of a lane.

What a commit does not count is not lost: it is brought into the next one, as far from the new parameters as it was from those that it
was trained on. So a lane whose member died in an exchange is in that round at the other stages, and at its stage, by the spare that
took the seat, in the next. The names of lane and round go with it, so that it counts once all the same
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
    """From the parameters of a commit to those of a later one, (N,) each."""

    base: CommitId
    head: CommitId
    before_N: torch.Tensor
    after_N: torch.Tensor

    def of(self, share: LaneShare) -> LaneShare:
        """As far from the new parameters as it was from the old ones."""
        moved_N = share.theta_N + (self.after_N - self.before_N).to(share.theta_N.dtype)
        return replace(share, theta_N=moved_N)


class Anchors:
    """The stage's parameters as they were given here, one after another, and how they moved last."""

    def __init__(self) -> None:
        self.move: ParameterMove | None = None
        """None where it is not known: at the start, and after a state that no commit led to."""

        self._last: tuple[CommitId, torch.Tensor] | None = None

    def moved_to(self, head: CommitId, anchor_N: torch.Tensor) -> None:
        """The next commit's, (N,); the same once more changes nothing, and others for the same commit are a state that was healed."""
        before = self._last
        if before is None or before[0] != head:
            self.move = None if before is None else ParameterMove(before[0], head, before[1], anchor_N)
        elif before[1] is not anchor_N:
            self.move = None
        self._last = head, anchor_N

    def is_behind(self, head: CommitId) -> bool:
        """Whether the parameters of this commit are still to be given here."""
        return self._last is not None and self._last[0] != head

    def forget(self) -> None:
        """What comes next was led to by no commit from here."""
        self.move = self._last = None
