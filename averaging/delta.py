"""The pseudo-gradient: the one place that states its sign."""

from __future__ import annotations

import torch


def pseudo_gradient(anchor_N: torch.Tensor, theta_N: torch.Tensor) -> torch.Tensor:
    """Delta = anchor - theta, (N,) float32: what local training would have subtracted (DiLoCo, 2311.08105, algorithm 1, line 12)."""
    return torch.sub(anchor_N, theta_N)
