"""The outer step: how a committed average moves the anchor. Single-operation float32 kernels, so that all get the same bytes."""

from __future__ import annotations

import torch

from protocol.errors import RemoteProtocolError
from protocol.rounds.messages import OuterStep


def apply_outer_step(
    anchor_N: torch.Tensor, momentum_N: torch.Tensor, update_N: torch.Tensor, outer: OuterStep
) -> tuple[torch.Tensor, torch.Tensor]:
    """The anchor and momentum after one commit; new (N,) float32 tensors, the arguments are left alone.

    "nesterov": m <- mu m + U; A <- A - eta (U + mu m) (DiLoCo, 2311.08105, section 2; Nesterov as in torch's SGD).
    "mean": A <- A - eta U, momentum untouched; with eta = 1 this is plain parameter averaging.

    Raises:
        RemoteProtocolError: a kind that this version does not know.
    """
    if outer.kind == "mean":
        return torch.sub(anchor_N, torch.mul(update_N, outer.learning_rate)), momentum_N.clone()
    if outer.kind == "nesterov":
        momentum_N = torch.add(torch.mul(momentum_N, outer.momentum), update_N)
        direction_N = torch.add(update_N, torch.mul(momentum_N, outer.momentum))
        return torch.sub(anchor_N, torch.mul(direction_N, outer.learning_rate)), momentum_N
    raise RemoteProtocolError(f"outer step {outer.kind!r}", "mean or nesterov", "install the run's version of potluck")
