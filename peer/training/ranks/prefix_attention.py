"""Causal attention of a chunk of tokens that follow others: each sees all earlier ones, and of its own chunk those up to itself.

No mask is made, since one would take as many values as queries times keys. Cards align the causal triangle themselves. A processor
computes the earlier tokens and the own chunk apart, and joins them by their sums of exponentials, as ring attention does (2310.01889).

Shapes: B sequences, H heads, K key-value heads, T tokens of the chunk, S tokens up to its end, E values a head.
"""

from __future__ import annotations

from typing import cast

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

_ATTEND = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_ATTEND_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def prefix_attention(q_BHTE: torch.Tensor, k_BKSE: torch.Tensor, v_BKSE: torch.Tensor) -> torch.Tensor:
    """Queries of the last T of S tokens to (B, H, T, E). K divides H, and T is at most S."""
    if q_BHTE.device.type == "cpu":
        return cast(torch.Tensor, _Joined.apply(q_BHTE, k_BKSE, v_BKSE))  # type: ignore[no-untyped-call]
    mask = causal_lower_right(q_BHTE.shape[2], k_BKSE.shape[2])
    is_grouped = k_BKSE.shape[1] < q_BHTE.shape[1]
    return functional.scaled_dot_product_attention(q_BHTE, k_BKSE, v_BKSE, attn_mask=mask, enable_gqa=is_grouped)


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        earlier = k.shape[2] - q.shape[2]
        mixed, sums = _ATTEND(q, k[:, :, earlier:], v[:, :, earlier:], 0.0, True)
        if earlier:
            before, before_sums = _ATTEND(q, k[:, :, :earlier], v[:, :, :earlier], 0.0, False)
            all_sums = torch.logaddexp(sums, before_sums)
            mixed = mixed * (sums - all_sums).exp_()[..., None] + before * (before_sums - all_sums).exp_()[..., None]
            mixed, sums = mixed.to(q.dtype), all_sums
        ctx.save_for_backward(q, k, v, mixed, sums)
        return cast(torch.Tensor, mixed)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v, mixed, sums = ctx.saved_tensors  # type: ignore[attr-defined]
        earlier = k.shape[2] - q.shape[2]
        own_k, own_v = k[:, :, earlier:], v[:, :, earlier:]
        grad_q, grad_k, grad_v = _ATTEND_BACKWARD(grad, q, own_k, own_v, mixed, sums, 0.0, True)
        if earlier:
            old_k, old_v = k[:, :, :earlier], v[:, :, :earlier]
            more_q, old_k, old_v = _ATTEND_BACKWARD(grad, q, old_k, old_v, mixed, sums, 0.0, False)
            grad_q = grad_q + more_q
            grad_k, grad_v = torch.cat((old_k, grad_k), dim=2), torch.cat((old_v, grad_v), dim=2)
        return grad_q, grad_k, grad_v
