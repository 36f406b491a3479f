"""Attention as one function of a layer, which a replica may replace: its tokens may see keys and values of other processes.

Shapes: B sequences, H heads, K key-value heads, T tokens, E values a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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
    q_BHTE: torch.Tensor, k_BKTE: torch.Tensor, v_BKTE: torch.Tensor, documents: Documents
) -> torch.Tensor:
    """As an `Attention`, in which a token sees its own document alone."""
    is_grouped = k_BKTE.shape[1] < q_BHTE.shape[1]
    return functional.scaled_dot_product_attention(
        q_BHTE, k_BKTE, v_BKTE, attn_mask=documents.sees_B1TT, enable_gqa=is_grouped
    )
