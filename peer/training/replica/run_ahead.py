"""Bounds how far a program runs ahead of its card, so that a pause is obeyed within two micro-batches."""

from __future__ import annotations

from collections import deque
from typing import Final

import torch

MOST_AHEAD: Final = 2
"""Micro-batches that a card may have in its queue. With one, it would stand still between two of them."""


class RunAhead:
    """Remembers the results of the newest micro-batches of a step, and waits for older ones."""

    def __init__(self) -> None:
        self._given: deque[tuple[torch.Tensor, torch.cuda.Event | None]] = deque()

    def note(self, result: torch.Tensor) -> None:
        """A micro-batch was given to the device; `result` is a scalar that it computes at its end."""
        mark = None
        if result.device.type == "cuda":
            mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
            mark.record(torch.cuda.current_stream(result.device))
        self._given.append((result, mark))

    def wait(self) -> None:
        """Wait until fewer than `MOST_AHEAD` micro-batches are in the queue."""
        while len(self._given) >= MOST_AHEAD:
            result, mark = self._given.popleft()
            if mark is not None:
                mark.synchronize()
            else:
                result.item()

    def clear(self) -> None:
        """The step is over, or was given up."""
        self._given.clear()
