"""Cross-entropy of a large vocabulary, some tokens at a time: the logits of all tokens never exist together.

The gradients of stream and head are made in the forward pass, while a chunk's logits are there, as in Liger's fused linear
cross-entropy (2410.10989, section 3.2). So a pass needs the memory of one chunk's logits, and computes each of them once.

Shapes: B sequences, T tokens of each, N tokens of all, D values, V vocabulary.
"""

from __future__ import annotations

from typing import Final, cast

import torch

from peer.models.frozen_linear import back_product, compute_type, in_type, rows_product

CPU_LOGITS: Final = 1 << 22
CARD_LOGITS: Final = 1 << 25
"""Logits of one chunk. Cards need large products to be busy; on a processor a chunk should stay near its caches."""

LEAST_CHUNK_TOKENS: Final = 64

NOT_COUNTED: Final = -100
"""The target of a token that does not count in a loss, as torch's cross-entropy has it."""


def chunk_tokens(vocab_size: int, device: torch.device) -> int:
    """Tokens whose logits are computed at a time."""
    most = CPU_LOGITS if device.type == "cpu" else CARD_LOGITS
    return max(LEAST_CHUNK_TOKENS, most // vocab_size)


def chunked_cross_entropy(
    x_BTD: torch.Tensor,
    head_VD: torch.Tensor,
    targets_BT: torch.Tensor,
    num_tokens: int = 0,
    *,
    num_counted: int | None = None,
) -> torch.Tensor:
    """The mean of -log softmax(x head^T)[target] over all tokens, in nats: a scalar of float32, or float64 where x has it.

    Args:
        head_VD: of the stream's type, or frozen in bfloat16: it then has no gradient.
        x_BTD: the stream after the last norm, in any floating type. Products are computed in autocast's type where it is on.
        targets_BT: int64, each below V.
        num_tokens: of a chunk; 0 for `chunk_tokens`.
        num_counted: None if all tokens count. Otherwise targets of `NOT_COUNTED` do not, and the sum of the others is divided by this
            number of tokens: those of a whole step, of which this is a part. 0 for those that count here.
    """
    if num_counted is not None:
        places_N = (targets_BT.flatten() >= 0).nonzero().squeeze(1)
        x_BTD, targets_BT = x_BTD.flatten(0, -2).index_select(0, places_N), targets_BT.flatten()[places_N]
        share = len(places_N) / max(1, num_counted or len(places_N))
        return chunked_cross_entropy(x_BTD, head_VD, targets_BT, num_tokens) * share
    num_tokens = num_tokens or chunk_tokens(head_VD.shape[0], x_BTD.device)
    has_gradient = torch.is_grad_enabled() and (x_BTD.requires_grad or head_VD.requires_grad)
    dtype = compute_type(x_BTD)
    with torch.autocast(x_BTD.device.type, enabled=False):
        loss = _ChunkedLoss.apply(x_BTD, head_VD, targets_BT, num_tokens, dtype, has_gradient)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, loss)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x_BTD: torch.Tensor,
        head_VD: torch.Tensor,
        targets_BT: torch.Tensor,
        num_tokens: int,
        dtype: torch.dtype,
        has_gradient: bool,
    ) -> torch.Tensor:
        x_ND, targets_N = x_BTD.flatten(0, -2), targets_BT.flatten()
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        head_cast_VD = in_type(head_VD, dtype)
        loss = torch.zeros((), dtype=wide, device=x_BTD.device)
        grad_x_ND = torch.empty_like(x_ND) if has_gradient else None
        learns_head = has_gradient and ctx.needs_input_grad[1]  # type: ignore[attr-defined]
        grad_head_VD = torch.zeros_like(head_VD) if learns_head else None
        for begin in range(0, len(x_ND), num_tokens):
            part_ND = x_ND[begin : begin + num_tokens].to(dtype)
            wanted_N1 = targets_N[begin : begin + num_tokens, None]
            logits_NV = rows_product(part_ND, head_cast_VD).to(wide)
            logits_NV -= logits_NV.logsumexp(-1, keepdim=True)
            loss -= logits_NV.gather(1, wanted_N1).sum()
            if grad_x_ND is None:
                continue
            # the derivative by the logits: softmax less one at the target
            slope_NV = logits_NV.exp_().scatter_add_(1, wanted_N1, -torch.ones_like(wanted_N1, dtype=wide))
            slope_cast_NV = slope_NV.div_(len(x_ND)).to(dtype)
            grad_x_ND[begin : begin + num_tokens] = back_product(slope_cast_NV, head_cast_VD)
            if grad_head_VD is None:
                continue
            if dtype == grad_head_VD.dtype:
                grad_head_VD.addmm_(slope_cast_NV.t(), part_ND)
            else:
                grad_head_VD += slope_cast_NV.t() @ part_ND
        if grad_x_ND is not None:
            # not saved as tensors: torch would keep a reference, and so copy the gradient of the head instead of taking it
            ctx.grads = [grad_x_ND.view_as(x_BTD), grad_head_VD]  # type: ignore[attr-defined]
        return loss / max(1, len(x_ND))

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None, None, None]:
        grad_head_VD = ctx.grads.pop().mul_(grad) if ctx.needs_input_grad[1] else None  # type: ignore[attr-defined]
        grad_x_BTD = ctx.grads.pop(0).mul_(grad) if ctx.needs_input_grad[0] else None  # type: ignore[attr-defined]
        return grad_x_BTD, grad_head_VD, None, None, None, None
