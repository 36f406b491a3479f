"""The expert that a local step trains. It follows from the step number, so any peer can compute it."""

from __future__ import annotations

from collections.abc import Sequence


def expert_of_step(experts: Sequence[int], step: int) -> int | None:
    """The expert of this step. A peer's experts take turns; None in a run without experts."""
    return experts[step % len(experts)] if experts else None
