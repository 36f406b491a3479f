"""Sums of squares that are the same on every machine, and the share of one that a codec left out."""

from __future__ import annotations

from math import ceil

import numpy as np
import torch

from protocol.rounds.messages.bounds import LOST_ALL_PPM


def squared_norm(values_n: torch.Tensor) -> float:
    """Sum of the squares of a (n,) float32 vector: exact squares in float64, summed by halves."""
    squares = values_n.numpy().astype(np.float64)
    np.multiply(squares, squares, out=squares)
    length = len(squares)
    while length > 1:
        half = length // 2
        np.add(squares[:half], squares[length - half : length], out=squares[:half])
        length -= half
    return float(squares[0]) if length else 0.0


def left_out(values_n: torch.Tensor, written_n: torch.Tensor) -> tuple[float, float]:
    """Two sums of squares of (n,) float32 values: of those written as zeros, and of all of them."""
    kept_n = values_n[values_n != 0]
    return squared_norm(values_n[(values_n != 0) & (written_n == 0)]), squared_norm(kept_n)


def lost_ppm(lost: float, energy: float) -> int:
    """A share of a sum of squares in millionths, rounded up: 0 means that nothing was lost."""
    return min(LOST_ALL_PPM, ceil(LOST_ALL_PPM * lost / energy)) if energy > 0 else 0
