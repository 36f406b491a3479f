"""Whether the peers can meet: most of them can be connected to, or a helper reduces for them. Pure.

Rules: R7 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.helper.helper_core import needs_helper

PATIENCE_S: Final = 60.0
"""How long a helper may take to start, in seconds, before its absence is worth a warning."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The live peers at the last look.

    Attributes:
        num_peers, num_hidden: how many there are, and to how many nobody can connect.
        num_helpers: helpers at work that peers can connect to.
        apart_since_s: since when too few peers can be connected to and no helper is at work, monotonic seconds; None while that is
            not so.
        warning: that this has lasted, and the remedy, in one sentence; empty while all is well.
    """

    num_peers: int = 0
    num_hidden: int = 0
    num_helpers: int = 0
    apart_since_s: float | None = None
    warning: str = ""

    def after_look(self, are_hidden: Sequence[bool], num_helpers: int, now_s: float) -> Reach:
        """The state after a look at the live peers, each hidden (nobody can connect to it) or not."""
        since_s = self.apart_since_s if self.apart_since_s is not None else now_s
        if num_helpers or not needs_helper(are_hidden):
            return Reach(len(are_hidden), sum(are_hidden), num_helpers)
        warning = _sentence(sum(are_hidden), len(are_hidden)) if now_s - since_s >= PATIENCE_S else ""
        return Reach(len(are_hidden), sum(are_hidden), num_helpers, since_s, warning)


def _sentence(num_hidden: int, num_peers: int) -> str:
    return (
        f"nobody can connect to {num_hidden} of {num_peers} peers, and no helper is at work, so rounds may count one peer alone: "
        "start the host without --no-helper and forward its helper's ports, or open a port for more peers"
    )
