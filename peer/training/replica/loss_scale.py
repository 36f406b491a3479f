"""Dynamic loss scaling for float16, whose smallest gradients would otherwise become zero (1710.03740, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

FIRST_SCALE: Final = 2.0**16
GROWTH: Final = 2.0
BACKOFF: Final = 0.5
GROWTH_INTERVAL: Final = 2000
"""Those of torch.amp.GradScaler, which cannot be used with functional optimizers. A scale is always a power of two, so that it
changes no digits.
"""

LEAST_SCALE: Final = 1.0


class LossScale:
    """The factor that losses are multiplied by before a backward pass, and gradients are divided by after it.

    Args:
        is_needed: False for every type with the exponents of float32; the factor is 1 then.
    """

    def __init__(self, *, is_needed: bool) -> None:
        self._is_needed = is_needed
        self._good_steps = 0
        self.factor = FIRST_SCALE if is_needed else 1.0

    @property
    def is_searching(self) -> bool:
        """Whether a gradient that is not finite may be due to the factor, which is then halved."""
        return self._is_needed and self.factor > LEAST_SCALE

    def undo(self, gradients: Iterable[torch.Tensor]) -> None:
        """Divide gradients by the factor, in place."""
        found = list(gradients)
        if self.factor != 1.0 and found:
            torch._foreach_mul_(found, 1.0 / self.factor)

    def note(self, *, is_finite: bool) -> None:
        """Adjust after a step: halve if its gradient was not finite, and double after many finite ones."""
        if not self._is_needed:
            return
        self._good_steps = self._good_steps + 1 if is_finite else 0
        if not is_finite:
            self.factor = max(LEAST_SCALE, self.factor * BACKOFF)
        elif self._good_steps == GROWTH_INTERVAL:
            self.factor, self._good_steps = self.factor * GROWTH, 0
