"""What is wrong here and that its owner should know of: a disk that refuses, and a state that is not the one that the run attests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

SHOWN_S: Final = 3600.0
"""A refusal of the disk is told for so long: what was refused is tried again with the next round, which may be an hour away."""


@dataclass
class HealthNotes:
    """What the rounds told of it. `num_refused` counts what failed for the disk refused it."""

    num_refused: int = 0
    refusal: str = ""
    refused_s: float = 0.0
    differs: str = ""

    def take(self, event: str, fields: Mapping[str, object], now_s: float) -> None:
        """An event of the rounds of any unit, at a time of the monotonic clock."""
        reason = str(fields.get("reason", ""))
        if event == "task_failed" and fields.get("is_of_disk"):
            self.num_refused += 1
            self.refusal, self.refused_s = reason, now_s
        elif event == "state_differs":
            self.differs = reason
        elif event == "state_healed":
            self.differs = ""

    def sentence(self, refused: Sequence[str], now_s: float) -> str:
        """All in one line, empty where nothing is wrong. `refused`: why the last generations were not written, one of each unit."""
        is_new = self.refusal and now_s - self.refused_s < SHOWN_S
        reasons = dict.fromkeys([*([self.refusal] if is_new else []), *filter(None, refused)])
        told = [f"the disk refuses: {reason}" for reason in reasons]
        return "; ".join([*told, *([self.differs] if self.differs else [])])
