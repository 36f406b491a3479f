"""Finds how many sequences a card computes at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

from peer.machine.device import give_back_memory, is_on_card, is_out_of_memory, wait_for
from peer.machine.memory import forget_own_peak, memory_use
from peer.machine.memory_core import MemoryUse, may_double
from peer.training.replica.replica import Replica

WORTH: Final = 0.05
"""A larger micro-batch must save at least this share of the time per token, because it takes more memory. Measured; see
tests/benchmarks/LOG.md.
"""

MEASURED_STEPS: Final = 2
FIRST_SIZE: Final = 4
"""The search begins here if memory is not limited."""


def fitting_size(sequences: int, most: int) -> int:
    """The largest micro-batch up to `most` of which a step of so many sequences has a whole number: all have one shape then."""
    return next(size for size in range(min(max(1, most), sequences), 0, -1) if sequences % size == 0)


def sizes_from(sequences: int, first: int) -> Iterator[int]:
    """Micro-batches to try, each at least twice the one before, and each a divisor of the sequences of a step."""
    size = fitting_size(sequences, first)
    while size:
        yield size
        size = next((larger for larger in range(2 * size, sequences + 1) if sequences % larger == 0), 0)


class MicroBatchSearch:
    """Times micro-batches on one replica.

    Args:
        loss_of: the loss of (B, T + 1) int64 tokens, with its graph.
        sequences: of one step.
        window: T + 1 tokens of a sequence.
        most_bytes: most memory of all of the peer's processes together, 0 for any.
    """

    def __init__(
        self,
        replica: Replica,
        loss_of: Callable[[torch.Tensor], torch.Tensor],
        *,
        sequences: int,
        window: int,
        most_bytes: int,
    ) -> None:
        self._replica, self._loss_of = replica, loss_of
        self._sequences, self._window, self._most_bytes = sequences, window, most_bytes

    def run(self) -> int:
        """Time larger and larger micro-batches and keep the fastest per token. A larger one must be faster by at least WORTH. The
        search ends at the first size that does not fit in memory, beside what later steps take. Under a memory limit it begins with
        one sequence, and ends before a size that would exceed the limit.
        """
        best, best_s = 1, math.inf
        with self._room_of_steps():
            before = self._memory_before() if self._most_bytes else None
            for size in sizes_from(self._sequences, FIRST_SIZE if before is None else 1):
                try:
                    elapsed_s = self.time_s(size) / size
                except (MemoryError, RuntimeError) as error:
                    if not is_out_of_memory(error):
                        raise
                    self._replica.optimizer.zero_grad()
                    break
                if elapsed_s < best_s * (1.0 - WORTH):
                    best, best_s = size, elapsed_s
                if before is not None and not self._may_double(before):
                    break
        give_back_memory(self._replica.device)  # memory of the sizes that were not kept
        return best

    def time_s(self, size: int) -> float:
        """Seconds of a forward and backward pass of so many sequences."""
        device = self._replica.device
        tokens_BT = torch.zeros((size, self._window), dtype=torch.long, device=device)
        self._replica.backward(self._loss_of(tokens_BT))
        wait_for(device)
        begin_s = time.perf_counter()
        for _ in range(MEASURED_STEPS):
            self._replica.backward(self._loss_of(tokens_BT))
        wait_for(device)
        elapsed_s = time.perf_counter() - begin_s
        self._replica.optimizer.zero_grad()
        return elapsed_s / MEASURED_STEPS

    @contextmanager
    def _room_of_steps(self) -> Iterator[None]:
        """Hold the memory on a card that the optimizer takes later: its moments, if they do not exist yet, and what a step needs for
        a moment. A size that only fits without them would run out at the first step.
        """
        optimizer, device = self._replica.optimizer, self._replica.device
        if not is_on_card(device):  # memory there is not taken before it is written; `may_double` counts it
            yield
            return
        later_bytes = optimizer.step_bytes + (0 if optimizer.has_moments else optimizer.moments_bytes)
        held = torch.empty(later_bytes, dtype=torch.uint8, device=device)
        yield
        del held

    def _memory_before(self) -> MemoryUse:
        """Memory use after a first pass. Libraries allocate some memory once, which larger sizes do not take again."""
        self.time_s(1)
        forget_own_peak()
        return memory_use()

    def _may_double(self, before: MemoryUse) -> bool:
        optimizer = self._replica.optimizer
        is_to_come = not is_on_card(self._replica.device) and not optimizer.has_moments
        later_bytes = optimizer.moments_bytes + optimizer.step_bytes if is_to_come else 0
        return may_double(self._most_bytes, later_bytes, before, memory_use())
