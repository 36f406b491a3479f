"""What the host says after it was started again: where the run stands, and whether work was lost. Pure.

The ledger is durable, so the run's newest round is known at once. Its state is the peers': only when they report is it known whether
any of them still has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

GATHER_S: Final = 60.0
"""How long to wait for a peer with the newest round before work is called lost: longer than starting again takes."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The round at which the ledger stood, and when that was read (monotonic seconds)."""

    index: int
    read_s: float


def restart_sentence(restart: Restart, peer_indices: Sequence[int], now_s: float) -> str:
    """One sentence, empty while it cannot be said. `peer_indices`: rounds at which the peers stand that have reported since."""
    best = max(peer_indices, default=-1)
    if best >= restart.index:
        return f"restarted at round {restart.index}; nothing was lost"
    if best < 0 or now_s - restart.read_s < GATHER_S:
        return ""
    return (
        f"restarted at round {restart.index}, but no peer that is back has more than round {best}: "
        f"work since round {best} was lost unless another one brings it"
    )
