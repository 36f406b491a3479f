"""Notes on the health of this peer, and on a host that follows another lineage.

What is wrong here and that its owner should know of: a disk that refuses, and a state that is not the one that the run attests.

Whether this peer goes on apart from the run: the host follows a lineage whose commits are not here, and nobody brings them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from averaging.rounds.lineage.round_reports import RoundReport, StateDiffers, StateHealed, TaskFailed
from protocol.ids import CommitId
from protocol.rounds.lineage.chain import ChainLink
from protocol.tables import duration

SHOWN_S: Final = 3600.0
"""A refusal of the disk is told for so long: what was refused is tried again with the next round, which may be an hour away."""


@dataclass
class HealthNotes:
    """What the rounds told of it. `num_refused` counts what failed for the disk refused it."""

    num_refused: int = 0
    refusal: str = ""
    refused_s: float = 0.0
    differs: str = ""

    def take(self, report: RoundReport, now_s: float) -> None:
        """A report of the rounds of any unit, at a time of the monotonic clock."""
        match report:
            case TaskFailed(is_of_disk=True, reason=reason):
                self.num_refused += 1
                self.refusal, self.refused_s = reason, now_s
            case StateDiffers(reason):
                self.differs = reason
            case StateHealed():
                self.differs = ""

    def sentence(self, refused: Sequence[str], now_s: float) -> str:
        """All in one line, empty where nothing is wrong. `refused`: why the last generations were not written, one of each unit."""
        is_new = self.refusal and now_s - self.refused_s < SHOWN_S
        reasons = dict.fromkeys([*([self.refusal] if is_new else []), *filter(None, refused)])
        told = [f"the disk refuses: {reason}" for reason in reasons]
        return "; ".join([*told, *([self.differs] if self.differs else [])])


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
