"""Attention of a rank's tokens over the keys and values of all ranks that share the sequences.

Keys and values are gathered before the heads of a group are repeated, so that little travels. Their gradients are added up where they
came from.

Shapes: B sequences, H heads, K key-value heads, T tokens of all ranks, R ranks, t = T / R tokens of one, E values a head.
"""

from __future__ import annotations

from typing import Final, cast

import torch
import torch.distributed as distributed

from peer.training.plan.split_core import token_spans
from peer.training.ranks.prefix_attention import prefix_attention

# releases differ in the names
_ALL_GATHER: Final = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
_REDUCE_SCATTER: Final = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor


class GatheredAttention:
    """The `Attention` of one rank.

    Args:
        group: those that share the sequences, in the order of their places.
    """

    def __init__(self, group: distributed.ProcessGroup) -> None:
        self._group = group
        self._place, self._num_ranks = distributed.get_rank(group), distributed.get_world_size(group)

    def __call__(self, q_BHtE: torch.Tensor, k_BKtE: torch.Tensor, v_BKtE: torch.Tensor) -> torch.Tensor:
        """(B, H, t, E). All ranks of the group must come here together, and again in the backward pass."""
        k_BKTE, v_BKTE = _gathered(torch.stack((k_BKtE, v_BKtE)), self._group)
        spans = token_spans(self._place, self._num_ranks, k_BKTE.shape[2])
        parts = [
            prefix_attention(q, k_BKTE[:, :, : span.stop], v_BKTE[:, :, : span.stop])
            for span, q in zip(spans, q_BHtE.chunk(2, dim=2), strict=True)
        ]
        return torch.cat(parts, dim=2)


def _gathered(own_2BKtE: torch.Tensor, group: distributed.ProcessGroup) -> torch.Tensor:
    """(2, B, K, T, E) in the order of positions."""
    return cast(torch.Tensor, _Gather.apply(own_2BKtE, group))  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, own: torch.Tensor, group: distributed.ProcessGroup
    ) -> torch.Tensor:
        ctx.group = group  # type: ignore[attr-defined]
        num_ranks = distributed.get_world_size(group)
        found = own.new_empty((num_ranks * own.shape[0], *own.shape[1:]))
        _ALL_GATHER(found, own.contiguous(), group=group)
        early, late = found.view(num_ranks, *own.shape).chunk(2, dim=-2)
        # ranks' first chunks in their order, then their second ones in the opposite order
        return torch.cat((*early.unbind(), *late.unbind()[::-1]), dim=-2)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        group = ctx.group  # type: ignore[attr-defined]
        num_ranks = distributed.get_world_size(group)
        chunks = grad.chunk(2 * num_ranks, dim=-2)
        parts = [torch.cat((chunks[place], chunks[-1 - place]), dim=-2) for place in range(num_ranks)]
        own = torch.empty_like(parts[0])
        _REDUCE_SCATTER(own, torch.cat(parts), group=group)
        return own, None
