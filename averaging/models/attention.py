"""Attention as one function of a layer, which a replica may replace: its tokens may see keys and values of other processes.

Shapes: B sequences, H heads, K key-value heads, T tokens, E values a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import torch
from torch.nn import functional

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Queries (B, H, T, E), keys and values (B, K, T, E), positions applied, to (B, H, T, E). Causal. K divides H."""


@runtime_checkable
class AttendingLayer(Protocol):
    """A layer whose tokens meet in `attention` alone. All else in it is of each token by itself."""

    attention: Attention


def causal_attention(q_BHTE: torch.Tensor, k_BKTE: torch.Tensor, v_BKTE: torch.Tensor) -> torch.Tensor:
    """The `Attention` of tokens that are all in this process."""
    is_grouped = k_BKTE.shape[1] < q_BHTE.shape[1]
    return functional.scaled_dot_product_attention(q_BHTE, k_BKTE, v_BKTE, is_causal=True, enable_gqa=is_grouped)


GROUPED_WITH_MASK: Final = frozenset(("cpu",))
"""Devices on which torch has a kernel for groups of queries and a mask. On the others it would copy keys and values for each query
head and compute all scores at once.
"""


def masked_attention(
    q_BHTE: torch.Tensor, k_BKSE: torch.Tensor, v_BKSE: torch.Tensor, sees: torch.Tensor
) -> torch.Tensor:
    """Attention of T tokens to the S that each of them sees: (B, H, T, E). Keys and values are not copied.

    Args:
        sees: bool, (T, S), or (B, 1, T, S) where sequences differ.
    """
    num_groups = q_BHTE.shape[1] // k_BKSE.shape[1]
    attend = functional.scaled_dot_product_attention
    if num_groups == 1 or q_BHTE.device.type in GROUPED_WITH_MASK:
        return attend(q_BHTE, k_BKSE, v_BKSE, attn_mask=sees, enable_gqa=num_groups > 1)
    # neighbouring query heads share a key-value head: the n-th of each go together
    parts = [attend(q_BHTE[:, n::num_groups], k_BKSE, v_BKSE, attn_mask=sees) for n in range(num_groups)]
    return torch.stack(parts, dim=2).flatten(1, 2)


_LEAST_BLOCK: Final = 256
"""Queries that attention in a window computes together, at least."""


class WindowedAttention:
    """The `Attention` of tokens that see `window` tokens: themselves and those before them (Mistral 7B, 2310.06825, section 2). Blocks
    of queries are computed with the keys that they see, so the work grows with the window and not with the context.
    """

    def __init__(self, window: int) -> None:
        self.window = window

    def __call__(self, q_BHTE: torch.Tensor, k_BKTE: torch.Tensor, v_BKTE: torch.Tensor) -> torch.Tensor:
        """(B, H, T, E), with keys and values (B, K, T, E), to (B, H, T, E)."""
        num_tokens = q_BHTE.shape[2]
        if num_tokens <= self.window:
            return causal_attention(q_BHTE, k_BKTE, v_BKTE)
        size = max(self.window, _LEAST_BLOCK)
        blocks = [
            self._block(q_BHTE, k_BKTE, v_BKTE, range(begin, min(begin + size, num_tokens)))
            for begin in range(0, num_tokens, size)
        ]
        return torch.cat(blocks, dim=2)

    def _block(self, q_BHTE: torch.Tensor, k_BKTE: torch.Tensor, v_BKTE: torch.Tensor, own: range) -> torch.Tensor:
        seen = range(max(0, own.start - self.window + 1), own.stop)
        places, others = (torch.arange(each.start, each.stop, device=q_BHTE.device) for each in (own, seen))
        back = places[:, None] - others[None, :]
        is_seen = (back >= 0) & (back < self.window)
        q, k, v = (x[:, :, each.start : each.stop] for x, each in ((q_BHTE, own), (k_BKTE, seen), (v_BKTE, seen)))
        return masked_attention(q, k, v, is_seen)


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents that are packed together and must not see each other.

    Attributes:
        places_BT: int64, the position of each token in its document, 0 for the first.
        sees_B1TT: bool, whether a token (row) sees another (column): earlier ones of its document, and itself.
    """

    places_BT: torch.Tensor
    sees_B1TT: torch.Tensor

    def rows_of(self, table: torch.Tensor) -> torch.Tensor:
        """The rows of a family's table (T, ...) that belong to each token's position: (B, T, ...)."""
        return table[self.places_BT] if len(table) else table


def documents_of(places_BT: torch.Tensor) -> Documents:
    """The documents of sequences whose tokens have these positions in them: a document begins at each 0."""
    numbers_BT = (places_BT == 0).cumsum(1)
    is_same_BTT = numbers_BT[:, :, None] == numbers_BT[:, None, :]
    return Documents(places_BT, is_same_BTT.tril_()[:, None])


def isolated_attention(
    q_BHTE: torch.Tensor,
    k_BKTE: torch.Tensor,
    v_BKTE: torch.Tensor,
    documents: Documents,
    window: int | None = None,
) -> torch.Tensor:
    """As an `Attention`, in which a token sees its own document alone, and of it at most the last `window` tokens."""
    sees_B1TT = documents.sees_B1TT
    if window is not None and window < q_BHTE.shape[2]:
        sees_B1TT = sees_B1TT & torch.ones_like(sees_B1TT[0, 0]).triu(1 - window)
    return masked_attention(q_BHTE, k_BKTE, v_BKTE, sees_B1TT)
