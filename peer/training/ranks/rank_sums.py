"""Sums over all ranks of a replica, bit-equal on each of them, or on the first one alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh


def summed(values: Sequence[float | torch.Tensor], device: torch.device) -> list[float]:
    """The sums of scalars over all ranks, in float64."""
    own = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=device) for value in values])
    dist.all_reduce(own)
    found: list[float] = own.tolist()
    return found


def own_square(grads: Sequence[tuple[torch.Tensor, float]], device: torch.device) -> torch.Tensor:
    """Sum of the squares of gradients, each times its share: a scalar of float64, on `device` wherever the gradients lie."""
    counted = [(grad, share) for grad, share in grads if grad.numel()]
    if not counted:
        return torch.zeros((), dtype=torch.float64, device=device)
    norms = torch.stack(torch._foreach_norm([grad for grad, _ in counted])).double()
    shares = torch.tensor([share for _, share in counted], dtype=torch.float64, device=norms.device)
    return (norms.square() * shares).sum().to(device)


def take_first(values: Sequence[torch.Tensor], ranks: DeviceMesh) -> None:
    """Give all these ranks the values of the first of them, in place. They differ by no more than the order of sums."""
    if not values:
        return
    neighbours = ranks.get_group()
    flat = torch.cat([value.reshape(-1) for value in values])
    dist.broadcast(flat, dist.get_global_rank(neighbours, 0), group=neighbours)
    for value, part in zip(values, torch.split(flat, [value.numel() for value in values]), strict=True):
        value.copy_(part.view_as(value))


def sum_on_first(values: Sequence[torch.Tensor]) -> None:
    """The sums of tensors over all ranks, in place on the first. Those of the others have any values then."""
    for value in values:
        dist.reduce(value, 0)


def give_first_to_all(values: Sequence[torch.Tensor]) -> None:
    """Give all ranks the values of the first, in place."""
    for value in values:
        dist.broadcast(value.detach(), 0)
