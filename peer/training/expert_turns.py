"""Which expert a local step trains: whole numbers that follow from the step, so that anyone can compute them again."""

from __future__ import annotations

from collections.abc import Sequence


def expert_of_step(experts: Sequence[int], step: int) -> int | None:
    """The experts of a peer take turns, step by step; None in a run without."""
    return experts[step % len(experts)] if experts else None
