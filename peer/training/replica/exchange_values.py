"""Exchanges the values of tensors in their places, a piece at a time, so that neither side needs a copy of the other."""

from __future__ import annotations

from typing import Final

import torch

PIECE_VALUES: Final = 1 << 18
"""A piece of 1 MiB stays in the cache of a processor."""


def exchange_piece() -> torch.Tensor:
    """Memory for one piece, (PIECE_VALUES,) float32 on the CPU."""
    return torch.empty(PIECE_VALUES, dtype=torch.float32)


@torch.no_grad()
def exchange_values(one: torch.Tensor, other: torch.Tensor, piece_P: torch.Tensor) -> None:
    """Give each of two float32 tensors of one shape the values of the other. Either may be on a card.

    Args:
        piece_P: memory for P values, of which nothing is kept.
    """
    if one.numel() <= len(piece_P):
        room = piece_P[: one.numel()].view(one.shape)
        room.copy_(one)
        one.copy_(other)
        other.copy_(room)
        return
    rows = len(piece_P) // one[0].numel()
    if rows:
        pairs = zip(torch.split(one, rows), torch.split(other, rows), strict=True)
    else:  # a row is larger than the piece
        pairs = zip(one.unbind(), other.unbind(), strict=True)
    for part, other_part in pairs:
        exchange_values(part, other_part, piece_P)
