"""The Trainer interface for one of several units that a training process trains together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch

from averaging.network.seams.interfaces import HeldoutLosses, KeptPart, ReadAnchors, Snapshot, TrainerProgress
from peer.training.peer_trainer import PeerTrainer


@runtime_checkable
class LendsRoom(Protocol):
    """Training whose memory, shared with its process, has a place for the shift of a unit."""

    @property
    def shift_room(self) -> Callable[[int], torch.Tensor | None]:
        """Gives the place of a unit's shift, (N,) float32, and keeps it for that; None while something else lies there."""
        ...


class UnitTrainer:
    """The training as the rounds of one unit see it: the unit's values and its ready tokens. `place` is the unit's index in the
    flat vector. With `still_s`, training stops after a snapshot until a commit comes, for that time at most. Evaluation covers the
    whole model, because one unit alone has no loss.
    """

    def __init__(self, worker: PeerTrainer, place: int, still_s: float = 0.0) -> None:
        self._worker = worker
        self._place = place
        self._still_s = still_s

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        """Theta <- anchor in this unit; its ready tokens <- 0."""
        await self._worker.load(anchor_N, schedule_tokens=schedule_tokens, unit=self._place)

    async def snapshot(self) -> Snapshot:
        """This unit's theta, (N,), and its tokens. Raises as `PeerTrainer.snapshot`."""
        return await self._worker.snapshot(unit=self._place, still_s=self._still_s)

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        """Theta <- kept theta + shift in this unit."""
        await self._worker.shift(
            shift_N, credited_tokens=credited_tokens, schedule_tokens=schedule_tokens, kept=kept, unit=self._place
        )

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        """Set the anchor from which this unit restarts after the worker dies."""
        await self._worker.set_anchor(anchor_N, unit=self._place)

    async def evaluate(self, read: ReadAnchors) -> HeldoutLosses:
        """Held-out losses of the whole model: `read` gives the anchors of all units. Raises as `PeerTrainer.evaluate`."""
        return await self._worker.evaluate(read)

    def shift_room(self) -> torch.Tensor | None:
        """The place for the unit's next shift, (N,) float32; None where it takes memory of its own."""
        return self._worker.shift_room(self._place) if isinstance(self._worker, LendsRoom) else None

    def progress(self) -> TrainerProgress:
        """Current counters, with this unit's ready tokens."""
        return self._worker.progress(unit=self._place)
