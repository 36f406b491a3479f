"""The pseudo-gradient: the one place that defines its sign."""

from __future__ import annotations

import torch

from averaging.arithmetic.batched_codec import encode_run
from averaging.codecs import Codec


def pseudo_gradient(anchor_N: torch.Tensor, theta_N: torch.Tensor) -> torch.Tensor:
    """Delta = anchor - theta, (N,) float32: what local training would have subtracted (DiLoCo, 2311.08105, algorithm 1, line 12)."""
    return torch.sub(anchor_N, theta_N)


def encode_delta(
    codec: Codec, anchor_n: torch.Tensor, theta_n: torch.Tensor, chunk_elements: int, room: memoryview
) -> list[memoryview]:
    """Encode the chunks of `pseudo_gradient`, (n,) float32, if possible without storing the delta itself. `room` and errors as in
    `encode_run`.
    """
    return encode_run(codec, anchor_n, chunk_elements, room, minus_n=theta_n)
