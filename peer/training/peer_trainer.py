"""The training of whole units as the daemon sees it, whether one process does it or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from averaging.network.seams.interfaces import HeldoutLosses, KeptPart, ReadAnchors, Snapshot, TrainerProgress
from averaging.rounds.traffic.spans import Record
from peer.training.plan.card_report import CardReport
from peer.training.plan.card_state import CardState
from peer.training.worker_channel import Scored, ScoreOrder


class PeerTrainer(Protocol):
    """The training of one peer, over all of its units. Commands take effect at the next step boundary.

    Attributes:
        record: told of each step's time.
    """

    record: Record

    @property
    def card(self) -> str | None:
        """UUID of the NVIDIA card that trains, empty for another device; None before a training process has named it."""
        ...

    @property
    def card_report(self) -> CardReport | None:
        """How the card trains, and why; None before a training process has told it."""
        ...

    @property
    def cards(self) -> tuple[CardState, ...]:
        """Each card of the peer, also one that is left out."""
        ...

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int, unit: int = 0) -> None:
        """Theta <- anchor in a unit; its ready tokens <- 0."""
        ...

    async def snapshot(self, *, unit: int = 0, still_s: float = 0.0) -> Snapshot:
        """A unit's theta and its tokens. Then no step is taken until the next shift or load, for `still_s` at most.

        Raises:
            WorkerDied: theta is lost.
        """
        ...

    async def shift(
        self,
        shift_N: torch.Tensor,
        *,
        credited_tokens: int,
        schedule_tokens: int,
        kept: Sequence[KeptPart] = (),
        unit: int = 0,
    ) -> None:
        """Theta <- kept theta + shift; theta that is not the one of the last snapshot becomes the anchor instead."""
        ...

    async def set_anchor(self, anchor_N: torch.Tensor, *, unit: int = 0) -> None:
        """Set the anchor from which training restarts. The vector is kept, not copied."""
        ...

    async def evaluate(
        self, read: ReadAnchors, experts: Sequence[int] = (), *, has_prose: bool = True
    ) -> HeldoutLosses:
        """Held-out losses of the whole model, with the anchors that `read` gives once there is room for them.

        Args:
            experts: the loss of each of these on its text; none for one loss of the model.
            has_prose: also the loss over the run's prose, if it has any.

        Raises:
            PotluckError: the anchors are not to be had any more.
            WorkerDied: ask again later.
            LossNotFinite: these parameters have none.
            DoesNotFit: no card has the memory for it.
        """
        ...

    async def score(self, read: ReadAnchors, order: ScoreOrder) -> Scored:
        """Log-likelihoods or answers by the whole model's parameters. Training waits meanwhile. Raises as `evaluate`."""
        ...

    def progress(self, *, unit: int = 0) -> TrainerProgress:
        """Current counters, with the ready tokens of this unit."""
        ...

    async def set_slowdown(self, factor: float) -> None:
        """Train at 1 / factor of full speed from now on."""
        ...

    async def pause(self) -> None:
        """Take no further step until `resume`. Commands are still obeyed."""
        ...

    async def resume(self) -> None:
        """Resume training."""
        ...

    def hold(self, is_held: bool, because: str = ...) -> None:
        """Tell the rounds that nothing can be contributed for now. Trained tokens are kept."""
        ...
