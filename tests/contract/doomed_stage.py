"""The training process of a stage, with points at which a card's process ends if a file says so (rank_doom.py). Imported by a process
that forks workers: importing it dooms the workers of the process.
"""

from __future__ import annotations

from typing import Any

import peer.worker  # noqa: F401 - what is forked
from peer.pipeline.stage.stage_ranks import StageRanks
from peer.pipeline.stage.stage_shards import StageShards
from tests.contract.rank_doom import Point, strike


def _doom(name: str, point: Point) -> None:
    for kind in (StageRanks, StageShards):
        if name in vars(kind):
            setattr(kind, name, _struck(vars(kind)[name], point))


def _struck(work: Any, point: Point) -> Any:
    def struck(self: StageRanks, *given: Any) -> Any:
        strike(self.group.rank, point)
        return work(self, *given)

    return struck


_doom("joined", "backward")
_doom("square", "optimizer")
_doom("spread", "step")
_doom("snapshot", "snapshot")
