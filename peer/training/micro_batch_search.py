"""Finds how many sequences a card computes at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

from peer.machine.device import (
    available_bytes,
    forget_most_used,
    give_back_memory,
    is_on_card,
    is_out_of_memory,
    most_used_bytes,
    wait_for,
)
from peer.machine.memory import forget_own_peak, memory_use
from peer.machine.memory_core import MemoryUse, may_double
from peer.training.ranks.rank_group import RankGroup, alone
from peer.training.replica.replica import Replica

WORTH: Final = 0.05
"""A larger micro-batch must save at least this share of the time per token, because it takes more memory. Measured; see
tests/benchmarks/LOG.md.
"""

MEASURED_STEPS: Final = 2
GROWTH_SHARE: Final = 0.95
"""Share of a card's free memory that a larger size may be expected to take."""

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
        num_processes: of the peer that search side by side, with the ranks of all its replicas.
        group: the ranks that search together, by the same sizes.
    """

    def __init__(
        self,
        replica: Replica,
        loss_of: Callable[[torch.Tensor], torch.Tensor],
        *,
        sequences: int,
        window: int,
        most_bytes: int,
        num_processes: int = 1,
        group: RankGroup | None = None,
    ) -> None:
        self._replica, self._loss_of, self._group = replica, loss_of, group or alone()
        self._sequences, self._window, self._most_bytes = sequences, window, most_bytes
        self._num_processes = num_processes
        self._least_bytes, self.size = 0, 0
        """The one that is being tried."""

    def run(self) -> int:
        """Time larger and larger micro-batches and keep the fastest per token. A larger one must be faster by at least WORTH. The
        search ends at the first size that does not fit in memory, beside what later steps take. Under a memory limit it begins with
        one sequence, and ends before a size that would exceed the limit.

        Ranks that search together try the same sizes, the slowest of them counts, and they end before a size for which one of them has
        too little memory left. If it runs out nevertheless, that ends its process, because the others wait for it within the pass.
        """
        best, best_s = 1, math.inf
        is_alone = self._group.size == 1
        with self._room_of_steps():
            before = self._memory_before() if self._most_bytes else None
            for size in sizes_from(self._sequences, FIRST_SIZE if before is None and is_alone else 1):
                if not self._group.all(is_alone or self._may_fit(size)):
                    break
                try:
                    elapsed_s = self._group.largest(self._timed(size)) / size
                except (MemoryError, RuntimeError) as error:
                    if not is_out_of_memory(error) or not is_alone:
                        raise
                    self._replica.discard()
                    break
                if elapsed_s < best_s * (1.0 - WORTH):
                    best, best_s = size, elapsed_s
                if before is not None and not self._group.all(self._may_double(before)):
                    break
        give_back_memory(self._replica.device)  # memory of the sizes that were not kept
        return best

    def _timed(self, size: int) -> float:
        device = self._replica.device
        forget_most_used(device)
        self._least_bytes, self.size = most_used_bytes(device), size
        return self.time_s(size)

    def _may_fit(self, size: int) -> bool:
        """Whether a card's memory may be enough for a size, by what the last one took. Always true where that is not counted."""
        device = self._replica.device
        taken_bytes = most_used_bytes(device) - self._least_bytes if self.size else 0
        return taken_bytes * size <= GROWTH_SHARE * available_bytes(device) * self.size or taken_bytes == 0

    def time_s(self, size: int) -> float:
        """Seconds of a forward and backward pass of so many sequences. A step of several passes may keep more between them than after
        the last one.
        """
        device = self._replica.device
        tokens_BT = torch.zeros((size, self._window), dtype=torch.long, device=device)
        is_alone = size >= self._sequences
        self._pass(tokens_BT, is_last=is_alone)
        wait_for(device)
        begin_s = time.perf_counter()
        for number in range(MEASURED_STEPS):
            self._pass(tokens_BT, is_last=is_alone or number == MEASURED_STEPS - 1)
        wait_for(device)
        elapsed_s = time.perf_counter() - begin_s
        self._replica.discard()
        return elapsed_s / MEASURED_STEPS

    def _pass(self, tokens_BT: torch.Tensor, *, is_last: bool) -> None:
        self._replica.begin_pass(is_last=is_last)
        self._replica.backward(self._loss_of(tokens_BT))

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
        return may_double(self._most_bytes, later_bytes, before, memory_use(), num_processes=self._num_processes)
