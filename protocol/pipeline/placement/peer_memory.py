"""Memory of a peer, for estimates and for what it may hold. Pure."""

from __future__ import annotations

from protocol.memory_costs import (
    FEEDBACK_BYTES,
    FRAGMENTS_BYTES,
    MOMENTUM_BYTES,
    PEER_BASE_BYTES,
    PEER_BYTES,
    SCORES_BYTES,
)


def peer_memory_bytes(
    num_parameters: int,
    *,
    has_feedback: bool = False,
    has_momentum: bool = False,
    has_fragments: bool = False,
    has_tasks: bool = False,
) -> int:
    """Memory of a peer that trains on the CPU. On a card, the training part of it is memory of the card.

    Args:
        has_feedback: whether the run has error feedback.
        has_momentum: whether its outer step keeps a momentum.
        has_fragments: whether it has rounds of fragments.
        has_tasks: whether it measures models on tasks.
    """
    more = FEEDBACK_BYTES * has_feedback + MOMENTUM_BYTES * has_momentum
    more += FRAGMENTS_BYTES * has_fragments + SCORES_BYTES * has_tasks
    return PEER_BASE_BYTES + (PEER_BYTES + more) * num_parameters
