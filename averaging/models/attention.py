"""Attention as one function of a layer, which a replica may replace: its tokens may see keys and values of other processes.

Shapes: B sequences, H heads, K key-value heads, T tokens, E values a head.
"""

from __future__ import annotations

from collections.abc import Callable
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
