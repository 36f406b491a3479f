"""The outer step: how a committed average moves the anchor. Single-operation float32 kernels, so that all get the same bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from averaging.arithmetic.vectors import new_vector
from averaging.codecs import Codec
from averaging.codecs.compiled import BLOCKS
from protocol.errors import RemoteProtocolError
from protocol.rounds.messages.messages import OuterStep


def moved_vectors(
    anchor_N: torch.Tensor, momentum_N: torch.Tensor, outer: OuterStep
) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for the anchor and momentum after a commit; a momentum that does not change is the same tensor.

    Raises:
        RemoteProtocolError: a kind that this version does not know.
    """
    if outer.kind == "mean":
        return new_vector(anchor_N.numel(), anchor_N.dtype), momentum_N
    if outer.kind == "nesterov":
        return new_vector(anchor_N.numel(), anchor_N.dtype), new_vector(momentum_N.numel(), momentum_N.dtype)
    raise RemoteProtocolError(f"outer step {outer.kind!r}", "mean or nesterov", "install the run's version of potluck")


def step_into(
    moved: tuple[torch.Tensor, torch.Tensor],
    anchor_n: torch.Tensor,
    momentum_n: torch.Tensor,
    update_n: torch.Tensor,
    outer: OuterStep,
) -> None:
    """Write the anchor and momentum after one commit into `moved`, from `moved_vectors`: of a part of the vector, (n,) float32 all.

    A part that fits into the processor's cache costs half of what whole vectors do, one operation after another. Intermediate values
    are written where the result comes to lie: memory that is asked for and given back costs more than the arithmetic.
    """
    moved_n, moved_momentum_n = moved
    if outer.kind == "nesterov":
        torch.mul(momentum_n, outer.momentum, out=moved_momentum_n)
        moved_momentum_n.add_(update_n)
        torch.mul(moved_momentum_n, outer.momentum, out=moved_n)
        moved_n.add_(update_n)
        moved_n.mul_(outer.learning_rate)
    else:
        torch.mul(update_n, outer.learning_rate, out=moved_n)
    torch.sub(anchor_n, moved_n, out=moved_n)


def step_by_encoded(
    moved_n: torch.Tensor,
    anchor_n: torch.Tensor,
    codec: Codec,
    chunks: Sequence[bytes | memoryview],
    chunk_elements: int,
    outer: OuterStep,
) -> bool:
    """As `step_into` with "mean", in one pass over the encoded update, whole chunks. False where that cannot be, or where the update
    is to be refused: decode it then.
    """
    if outer.kind != "mean" or BLOCKS is None:
        return False
    return BLOCKS.step(codec, chunks, chunk_elements, outer.learning_rate, anchor_n, moved_n)
