"""Held-out losses of other parameters, in the memory that training needs anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import torch

from averaging.data.assignment import heldout_windows
from averaging.data.token_reader import TokenReader
from peer.machine.device import give_back_memory, has_room_of_step, is_out_of_memory
from peer.training.ranks.rank_group import RankGroup, alone
from peer.training.ranks.text_share import ALL_TEXT, TextShare
from peer.training.replica.replica import Replica
from peer.training.replica.text_batches import TextBatch
from protocol.errors import TemporaryError
from protocol.tensors.tensor_schema import TensorSchema

T = TypeVar("T")

HELDOUT_WINDOWS: Final = 64
EVALUATED_WINDOWS: Final = 16
"""Most windows evaluated at a time."""

_REMEDY: Final = "nothing: other peers evaluate"


class EvaluationDoesNotFit(TemporaryError):
    """The card's memory is not enough to evaluate even one window. Training is not affected."""


class EvaluationRanOut(MemoryError):
    """One of several ranks ran out of memory within an evaluation. The others wait for it, so that all have to end."""


class Evaluation:
    """Evaluates parameters that stand in for a replica's own for a moment.

    Args:
        loss_of: the loss of a batch in nats: its mean, or its part of that of as many tokens as count.
        batch_of: reads the windows at these starts.
        window: T + 1 tokens of a sequence.
        share: the windows that this process reads.
        group: the ranks that evaluate together.
    """

    def __init__(
        self,
        replica: Replica,
        loss_of: Callable[[TextBatch, int | None, int], torch.Tensor],
        batch_of: Callable[[TokenReader, tuple[int, ...]], TextBatch],
        window: int,
        share: TextShare = ALL_TEXT,
        group: RankGroup | None = None,
    ) -> None:
        self._share, self._group = share, group or alone()
        self._replica, self._loss_of, self._batch_of, self._window = replica, loss_of, batch_of, window
        self._most_windows = EVALUATED_WINDOWS
        self._steps_aside = False

    def nats(self, reader: TokenReader, values: Sequence[torch.Tensor], expert: int | None, micro_batch: int) -> float:
        """Mean loss of other parameters over the tokens that count in the fixed held-out windows, in nats per token. The replica's own
        do not change.

        Args:
            values: as of `Replica.standing_in`.
            micro_batch: of training; no more windows are evaluated at a time. 0 if it is not known yet.

        Raises:
            EvaluationDoesNotFit: not even one window fits beside the model.
        """
        starts = reader.aligned(heldout_windows(HELDOUT_WINDOWS, reader.spans, self._window), self._window)
        num_counted = reader.num_counted(starts, self._window) if reader.is_marked else 0

        def measured(size: int) -> float:
            losses = [
                float(self._loss_of(self._batch_of(reader, part.starts), expert, num_counted))
                * part.factor(is_marked=reader.is_marked)
                for part in self._share.parts(starts, size)
            ]
            return sum(losses)

        return self._replica.sum_over_ranks(self.within_memory(values, micro_batch, measured))

    def within_memory(self, values: Sequence[torch.Tensor], micro_batch: int, measured: Callable[[int], T]) -> T:
        """Run `measured` with other parameters in place of the replica's own. It gets the most sequences that it may compute at
        a time, and is called again with fewer where the card's memory is not enough. Arguments and errors as of `nats`.

        A rank that ran out of memory within a pass would leave the others waiting. So ranks begin only if each of them has the memory
        of a training step, which takes more.

        Raises:
            EvaluationRanOut: the memory of a rank was not enough nevertheless.
        """
        if not self._group.all(self._group.size == 1 or has_room_of_step(self._replica.device)):
            raise EvaluationDoesNotFit("a card has less memory left than a step takes", "as much", _REMEDY)
        while True:
            size = min(self._most_windows, micro_batch or 1)
            try:
                with self._replica.standing_in(values, steps_aside=self._steps_aside):
                    return measured(size)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if self._group.size > 1:
                    raise EvaluationRanOut("an evaluation ran out of memory") from error
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
                _REMEDY,
            ) from error


def values_of(
    replica: Replica, anchors: torch.Tensor | Sequence[torch.Tensor], units: Sequence[TensorSchema]
) -> list[torch.Tensor]:
    """The replica's part of each parameter. `anchors` are (N,) for each unit, or one vector with all of them one after another."""
    if isinstance(anchors, torch.Tensor):
        return replica.parts(anchors, replica.schema)
    return [part for anchor_N, unit in zip(anchors, units, strict=True) for part in replica.parts(anchor_N, unit)]
