"""Log-likelihoods of chosen tokens, and likeliest next tokens, without the logits of all the others.

Shapes: B sequences, T tokens, D values, V vocabulary, M marked tokens.
"""

from __future__ import annotations

import torch

from peer.models.chunked_loss import chunk_tokens
from peer.models.frozen_linear import compute_type, in_type, rows_product


def sums_of_marked(
    x_BTD: torch.Tensor, head_VD: torch.Tensor, targets_BT: torch.Tensor, marked_BT: torch.Tensor
) -> torch.Tensor:
    """(B,) float64: of each sequence the sum of log softmax(x head^T)[target] over its marked places; 0 without any."""
    rows_M, places_M = marked_BT.nonzero(as_tuple=True)
    picked_MD, wanted_M = x_BTD[rows_M, places_M], targets_BT[rows_M, places_M]
    sums_B = torch.zeros(len(x_BTD), dtype=torch.float64, device=x_BTD.device)
    size = chunk_tokens(head_VD.shape[0], x_BTD.device)
    for begin in range(0, len(picked_MD), size):
        part = slice(begin, begin + size)
        logits_MV = _logits(picked_MD[part], head_VD)
        found_M = logits_MV.gather(1, wanted_M[part, None])[:, 0] - logits_MV.logsumexp(-1)
        sums_B.index_add_(0, rows_M[part], found_M.double())
    return sums_B


def likeliest_of_marked(
    x_BTD: torch.Tensor, head_VD: torch.Tensor, marked_BT: torch.Tensor, vocab_size: int
) -> torch.Tensor:
    """(B,) int64: the likeliest token below `vocab_size` after the one marked place of each sequence; 0 where none is marked."""
    rows_M, places_M = marked_BT.nonzero(as_tuple=True)
    found_B = torch.zeros(len(x_BTD), dtype=torch.int64, device=x_BTD.device)
    if len(rows_M):
        found_B[rows_M] = _logits(x_BTD[rows_M, places_M], head_VD)[:, :vocab_size].argmax(-1)
    return found_B


def _logits(x_MD: torch.Tensor, head_VD: torch.Tensor) -> torch.Tensor:
    """(M, V), in float32 at least. The products are computed in the type that autocast is on for, as the loss is. The head may be
    frozen.
    """
    dtype = compute_type(x_MD)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    with torch.autocast(x_MD.device.type, enabled=False):
        return rows_product(x_MD.to(dtype), in_type(head_VD, dtype)).to(wide)
