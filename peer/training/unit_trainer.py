"""The Trainer seam of one unit of several that one training process trains together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from averaging.network.seams.interfaces import KeptPart, Snapshot, TrainerProgress
from peer.training.trainer import WorkerTrainer


class UnitTrainer:
    """What the rounds of one unit know of the training: its own values and its own tokens ready. `place` is that of the unit in the
    flat vector. With `still_s` training stands still after a snapshot until a commit has come, at most for so long. The whole model
    is evaluated by the training process itself, for one unit has no loss of its own.
    """

    def __init__(self, worker: WorkerTrainer, place: int, still_s: float = 0.0) -> None:
        self._worker = worker
        self._place = place
        self._still_s = still_s

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        """Theta <- anchor in this unit; its tokens ready <- 0."""
        await self._worker.load(anchor_N, schedule_tokens=schedule_tokens, unit=self._place)

    async def snapshot(self) -> Snapshot:
        """This unit's theta, (N,), and its tokens. Raises as `WorkerTrainer.snapshot`."""
        return await self._worker.snapshot(unit=self._place, still_s=self._still_s)

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        """Theta <- kept theta + shift in this unit."""
        await self._worker.shift(
            shift_N, credited_tokens=credited_tokens, schedule_tokens=schedule_tokens, kept=kept, unit=self._place
        )

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        """Where this unit of a worker that dies is brought back."""
        await self._worker.set_anchor(anchor_N, unit=self._place)

    async def evaluate(self, anchor_N: torch.Tensor) -> float:
        """Of the whole model: `anchor_N` are the values of all units. Raises as `WorkerTrainer.evaluate`."""
        return await self._worker.evaluate(anchor_N)

    async def evaluate_prose(self, anchor_N: torch.Tensor) -> float | None:
        """As `evaluate`, over the run's prose."""
        return await self._worker.evaluate_prose(anchor_N)

    def progress(self) -> TrainerProgress:
        """Counters as of now; tokens ready are this unit's."""
        return self._worker.progress(unit=self._place)
