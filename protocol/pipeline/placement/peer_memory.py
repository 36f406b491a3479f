"""Memory of a peer per parameter and in total, for estimates and for cutting stages. Measured; see tests/benchmarks/LOG.md."""

from __future__ import annotations

from typing import Final

PEER_MEMORY_BASE_BYTES: Final = 1 << 30
"""Two Python processes with torch, p2pd, and the activations of a small model."""

PEER_MEMORY_BYTES_PER_PARAMETER: Final = 40
"""Parameters, gradients and two moments of Adam in float32 (16), three vectors shared with the daemon (12), its own state (8),
and some reserve.
"""

FEEDBACK_MEMORY_BYTES_PER_PARAMETER: Final = 8
"""With error feedback: the residual and the pending one in float32 (averaging/arithmetic/error_feedback.py)."""


def peer_memory_bytes(num_parameters: int, *, has_feedback: bool = False) -> int:
    """Memory of a peer that trains on the CPU. On a card, the training part of it is memory of the card."""
    per_parameter = PEER_MEMORY_BYTES_PER_PARAMETER + (FEEDBACK_MEMORY_BYTES_PER_PARAMETER if has_feedback else 0)
    return PEER_MEMORY_BASE_BYTES + per_parameter * num_parameters
