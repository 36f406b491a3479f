"""The expert that a local step trains. It follows from the step number, so any peer can compute it."""

from __future__ import annotations

from collections.abc import Sequence


def expert_of_step(experts: Sequence[int], step: int, stride: int = 1) -> int | None:
    """The expert of this data position. A peer's experts take turns; None in a run without experts.

    An island takes each `stride`-th position. Its turns go by its own steps, so that it takes all experts; islands begin at
    different ones.
    """
    return experts[(step // stride + step % stride) % len(experts)] if experts else None
