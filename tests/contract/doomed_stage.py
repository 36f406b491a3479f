"""The training process of a stage, with points at which a card's process ends if a file says so (rank_doom.py). Imported by a process
that forks workers: importing it dooms the workers of the process.
"""

from __future__ import annotations

from typing import Any

import peer.worker  # noqa: F401 - what is forked
from peer.pipeline.stage.stage_ranks import StageRanks
from tests.contract.rank_doom import Point, strike


def _doom(name: str, point: Point) -> None:
    work: Any = getattr(StageRanks, name)

    def struck(self: StageRanks, *given: Any) -> Any:
        strike(self.group.rank, point)
        return work(self, *given)

    setattr(StageRanks, name, struck)


_doom("joined", "backward")
_doom("sum_gradients", "optimizer")
_doom("spread", "step")
