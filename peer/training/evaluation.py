"""Held-out losses of other parameters, in the memory that training needs anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import torch

from averaging.data.assignment import heldout_starts
from averaging.data.shards import TokenReader
from peer.machine.device import give_back_memory, is_out_of_memory
from peer.training.ranks.text_share import ALL_TEXT, TextShare
from peer.training.replica.replica import Replica
from protocol.errors import TemporaryError

T = TypeVar("T")

HELDOUT_WINDOWS: Final = 64
EVALUATED_WINDOWS: Final = 16
"""Most windows evaluated at a time."""


class EvaluationDoesNotFit(TemporaryError):
    """The card's memory is not enough to evaluate even one window. Training is not affected."""


class Evaluation:
    """Evaluates parameters that stand in for a replica's own for a moment.

    Args:
        loss_of: the mean loss of (B, T + 1) int64 tokens in nats.
        batch_of: reads (B, T + 1) tokens at these starts.
        window: T + 1 tokens of a sequence.
        share: the windows that this process reads. All ranks evaluate together.
    """

    def __init__(
        self,
        replica: Replica,
        loss_of: Callable[[torch.Tensor, int | None], torch.Tensor],
        batch_of: Callable[[TokenReader, tuple[int, ...]], torch.Tensor],
        window: int,
        share: TextShare = ALL_TEXT,
    ) -> None:
        self._share = share
        self._replica, self._loss_of, self._batch_of, self._window = replica, loss_of, batch_of, window
        self._most_windows = EVALUATED_WINDOWS
        self._steps_aside = False

    def nats(self, reader: TokenReader, values_N: torch.Tensor, expert: int | None, micro_batch: int) -> float:
        """Mean loss of (N,) parameters over the fixed held-out windows, in nats per token. The replica's own do not change.

        Args:
            micro_batch: of training; no more windows are evaluated at a time. 0 if it is not known yet.

        Raises:
            EvaluationDoesNotFit: not even one window fits beside the model.
        """
        starts = heldout_starts(HELDOUT_WINDOWS, reader.num_tokens, self._window)

        def measured(size: int) -> float:
            losses = [
                float(self._loss_of(self._batch_of(reader, part.starts), expert)) * part.weight
                for part in self._share.parts(starts, size)
            ]
            return sum(losses)

        return self._replica.sum_over_ranks(self.within_memory(values_N, micro_batch, measured))

    def within_memory(self, values_N: torch.Tensor, micro_batch: int, measured: Callable[[int], T]) -> T:
        """Run `measured` with (N,) parameters in place of the replica's own. It gets the most sequences that it may compute at a time,
        and is called again with fewer where the card's memory is not enough. Arguments and errors as of `nats`.
        """
        while True:
            size = min(self._most_windows, micro_batch or 1)
            try:
                with self._replica.standing_in(values_N, steps_aside=self._steps_aside):
                    return measured(size)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or not self._share.is_all:  # other ranks wait within a pass
                    raise
                self._make_smaller(size, error)

    def _make_smaller(self, size: int, error: BaseException) -> None:
        """Next time fewer windows at a time; from one on, the own parameters step aside."""
        give_back_memory(self._replica.device)
        if size > 1:
            self._most_windows = size // 2
        elif not self._steps_aside:
            self._steps_aside = True
        else:
            raise EvaluationDoesNotFit(
                "the card has no memory left to evaluate one sequence",
                "as much as one sequence needs",
                "nothing: other peers evaluate",
            ) from error
