"""One stage on several cards: each computes its sequences of every micro-batch.

The first rank obeys the daemon and passes each order on. If the stage fits a card, each card has all of it, and the first one takes
the steps. It alone has the optimizer's moments: gradients are summed there, and its parameters go to the others after each step. So to
a lane the stage is that of one card, its snapshots too, and all cards have the same parameters bit for bit. A stage that is too large
for a card is shared by rows (stage_shards.py).

Shapes: B sequences of a micro-batch, T tokens, D values of a token between stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Final

import torch

from peer.pipeline.stage.snapshot_rows import restore_rows, send_rows
from peer.pipeline.stage.stage_trainer import StageTrainer
from peer.training.ranks.rank_group import RankGone, RankGroup, alone
from protocol.errors import PotluckError, TemporaryError

_DONE: Final = b"done"
_FAILED: Final = b"failed"


class RanksApart(TemporaryError):
    """A card of a stage could not compute what another one computed. All of them start anew."""


class StageRanks:
    """The cards of one stage, or one card alone. All ranks make the same calls in the same order.

    Args:
        group: the ranks, as `meet` gives them. Several of them have torch's process group open.
    """

    of_the_first: ClassVar[tuple[str, ...]] = ("slow", "theta", "snapshot", "written")
    """Orders that only the first card obeys."""

    def __init__(self, group: RankGroup) -> None:
        self.group = group

    @property
    def is_first(self) -> bool:
        """Whether this rank answers the daemon."""
        return self.group.is_first

    @property
    def num_writers(self) -> int:
        """Ranks that write a snapshot."""
        return 1

    @property
    def takes_steps(self) -> bool:
        """Whether this rank has moments and moves parameters by them."""
        return self.is_first

    def same_moments(self, saved_tokens: int) -> bool:
        """As `moments.SameOnAll`: only the first one takes some up."""
        return True

    def own(self, rows: torch.Tensor) -> torch.Tensor:
        """This rank's sequences of a micro-batch, (B, ...) to (B / ranks, ...)."""
        each = rows.shape[0] // self.group.size
        return rows[self.group.rank * each : (self.group.rank + 1) * each]

    def joined(self, compute: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        """Compute on all ranks. Returns the rows of all, (B, T, D), on the first rank; none on the others, or if there are none.

        Raises:
            PotluckError: it could be computed on no rank; the state of all is the same.
            RanksApart: on some of them only.
            RankGone: a process ended.
        """
        group = self.group
        if group.size == 1:
            return compute()
        left, failure = _tried(compute)
        if not group.all(failure is None):
            is_alike = group.all(failure is not None)
            if failure is None:
                raise RankGone("another card of this stage could not compute a pass", "what this one could")
            raise (
                failure
                if is_alike
                else RanksApart(failure.found, failure.expected, "all cards of the stage start anew")
            )
        if left is None:
            return None
        parts = group.gather_all(left.detach().cpu().contiguous().numpy().tobytes())
        if not parts:
            return None
        return torch.cat([torch.frombuffer(bytearray(part), dtype=left.dtype).view(left.shape) for part in parts])

    def mean(self, losses: Sequence[tuple[float, float]]) -> float | None:
        """The mean by weight of the losses of all ranks, on the first; None if nothing counts, and on the others."""
        own = [math.fsum(nats * weight for nats, weight in losses), math.fsum(weight for _, weight in losses)]
        found = self.group.gather(" ".join(each.hex() for each in own).encode())
        sums = [[float.fromhex(word) for word in part.decode().split()] for part in found]
        total, weight = sum(each[0] for each in sums), sum(each[1] for each in sums)
        return total / weight if weight else None

    def load(self, trainer: StageTrainer, theta_N: torch.Tensor) -> None:
        """Set all cards' parameters to (N,), which the first one can read."""
        self._led_to(trainer, partial(trainer.load, theta_N))

    def write_theta(self, trainer: StageTrainer, out_N: torch.Tensor) -> None:
        """Write the parameters into (N,)."""
        trainer.write_theta(out_N)

    def snapshot(self, trainer: StageTrainer, out: torch.Tensor) -> int:
        """Copy all that the next step depends on, as `send_rows` does. The first rank writes all of it."""
        return send_rows(trainer, out, is_first=self.is_first)

    def restore(self, trainer: StageTrainer, data: torch.Tensor) -> bool:
        """Have all cards continue from a snapshot that the first one reads, uint8. Returns whether that was done.

        Raises:
            PotluckError: on the first one, it is none of this stage. Nothing has changed.
        """
        return self._led_to(trainer, lambda: restore_rows(trainer, data, bool))

    def square(self, trainer: StageTrainer) -> float:
        """Squared norm of the stage's gradient on the first rank; 0 on others."""
        self._sum_gradients(trainer.replica.parameters)
        return trainer.gradient_square() if self.is_first else 0.0

    def _led_to(self, trainer: StageTrainer, act: Callable[[], None]) -> bool:
        is_done = self.led(act, trainer.replica.parameters)
        if is_done and not self.is_first:
            trainer.passes.forget()
        return is_done

    def led(self, act: Callable[[], None], parameters: Sequence[torch.Tensor]) -> bool:
        """Change the parameters on the first rank by `act`; the others get them. Returns whether that was done; if it was not, the
        first rank raises why.
        """
        if self.is_first:
            try:
                act()
            except PotluckError:
                self.group.share(_FAILED)
                raise
            self.group.share(_DONE)
        elif self.group.share() != _DONE:
            return False
        self.spread(parameters)
        return True

    def spread(self, parameters: Sequence[torch.Tensor]) -> None:
        """Give all ranks the first one's parameters, after it took a step."""
        if self.group.size > 1:
            from peer.training.ranks.rank_sums import give_first_to_all  # imports torch.distributed

            give_first_to_all(parameters)

    def _sum_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        """Give the first rank the sum of all ranks' gradients. Those of the others are of no use then."""
        if self.group.size > 1:
            from peer.training.ranks.rank_sums import sum_on_first  # imports torch.distributed

            sum_on_first([each.grad for each in parameters if each.grad is not None])


def alone_on_stage() -> StageRanks:
    """A stage on one card."""
    return StageRanks(alone())


def _tried(compute: Callable[[], torch.Tensor | None]) -> tuple[torch.Tensor | None, PotluckError | None]:
    try:
        return compute(), None
    except PotluckError as error:
        return None, error
