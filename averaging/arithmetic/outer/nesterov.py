"""Nesterov's momentum: m <- mu m + U; A <- A - eta (U + mu m) (DiLoCo, 2311.08105, section 2; as in torch's SGD)."""

from __future__ import annotations

import torch

from averaging.arithmetic.outer.outer_kind import OuterKind, Vectors
from protocol.rounds.messages.record import OuterStep


class Nesterov(OuterKind):
    """One state vector: the momentum."""

    name = "nesterov"

    def step_into(self, moved: Vectors, before: Vectors, update_n: torch.Tensor, numbers: OuterStep) -> None:
        """Six operations."""
        (moved_n, moved_momentum_n), (anchor_n, momentum_n) = moved, before
        torch.mul(momentum_n, numbers.momentum, out=moved_momentum_n)
        moved_momentum_n.add_(update_n)
        torch.mul(moved_momentum_n, numbers.momentum, out=moved_n)
        moved_n.add_(update_n)
        moved_n.mul_(numbers.learning_rate)
        torch.sub(anchor_n, moved_n, out=moved_n)


KINDS = (Nesterov(),)
