"""Whether this peer goes on apart from the run: the host follows a lineage whose commits are not here, and nobody brings them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.ids import CommitId
from protocol.rounds.lineage.chain import ChainLink
from protocol.tables import duration

APART_AFTER_S: Final = 60.0
"""Whoever is a round behind has it within seconds; this long only nobody helps, or a line that is too slow to keep up."""


@dataclass(frozen=True, slots=True)
class LineageDivergence:
    """Since when the host's head has not been on our lineage, None while it is; and where both stood when the host was heard last."""

    since_s: float | None = None
    host_index: int = 0
    own_index: int = 0

    def sentence(self, now_s: float) -> str:
        """What it means for the owner; empty while there is nothing to say."""
        if self.since_s is None or now_s - self.since_s < APART_AFTER_S:
            return ""
        return (
            f"apart from the run for {duration(now_s - self.since_s)}: the host follows a round {self.host_index} that is not here, "
            f"this peer is at a round {self.own_index} of its own; what is trained here counts once a peer that has the run's rounds "
            "can be reached: `potluck doctor` says how"
        )


def after_report(
    before: LineageDivergence, links: Sequence[ChainLink], host_head: CommitId, host_index: int, now_s: float
) -> LineageDivergence:
    """The next value, when the host has said where it stands; `links` is our lineage from its first commit on, or empty."""
    place = host_index - links[0].index if links else 0
    is_here = not links or (0 <= place < len(links) and links[place].commit == host_head)
    if is_here:
        return LineageDivergence()
    since_s = now_s if before.since_s is None else before.since_s
    return LineageDivergence(since_s, host_index, links[-1].index)
