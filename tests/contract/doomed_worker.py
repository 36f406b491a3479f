"""The training process, with points at which a rank ends if a file says so (rank_doom.py). Imported by a process that forks workers:
importing it dooms the workers of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import peer.worker
from peer.training.local_training import Counters, LocalTrainer
from tests.contract.rank_doom import Point, strike


class DoomedTrainer(LocalTrainer):
    """The real one, with the points of its work."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        replica: Any = self.replica
        replica.backward = self._struck("backward", replica.backward)
        replica.step = self._struck("optimizer", replica.step)
        evaluation: Any = self._evaluation
        evaluation._loss_of = self._struck("evaluation", evaluation._loss_of)

    def _struck(self, point: Point, work: Callable[..., Any]) -> Callable[..., Any]:
        def struck(*given: Any) -> Any:
            strike(self.plan.rank, point)
            return work(*given)

        return struck

    def step(self, goes_on: Callable[[], bool] = lambda: True) -> Counters:
        strike(self.plan.rank, "step")
        return super().step(self._struck("between", goes_on))

    def send_theta(self, room_N: torch.Tensor, place: int = 0) -> None:
        strike(self.plan.rank, "snapshot")
        super().send_theta(room_N, place)


peer.worker.LocalTrainer = DoomedTrainer  # type: ignore[misc]
