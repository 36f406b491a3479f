"""The place of an optimizer's moments between its steps: beside their parameters, or in the machine's memory.

Moments in the machine's memory are brought to the card for one parameter at a time, and written back. A step of b tokens so moves
16 bytes a value of AdamW over the bus, which is little beside the 6 b floating-point operations that it computes for each. If the
parameters lie in the machine's memory too, steps are taken there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch


class MomentHome:
    """Makes, brings and writes back moments.

    Args:
        is_away: whether they lie in the machine's memory, which is pinned for a CUDA card.
        card: where large products of a step are computed, if the parameters lie in the machine's memory too.
    """

    def __init__(self, *, is_away: bool = False, card: torch.device | None = None) -> None:
        self.is_away, self.card = is_away, card
        self.brings = is_away and card is None
        """Whether moments come to the card for a step."""

    def zeros(self, parameter: torch.Tensor) -> torch.Tensor:
        """A moment of the parameter's shape, all zero."""
        if not self.brings:
            return torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return torch.zeros(parameter.shape, dtype=parameter.dtype, pin_memory=parameter.is_cuda)

    def together(self, parameters: Sequence[torch.nn.Parameter]) -> Iterator[Sequence[torch.nn.Parameter]]:
        """The parameters that a step moves at once."""
        return ([parameter] for parameter in parameters) if self.brings else iter([parameters])

    def brought(self, moment: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """The moment beside its parameter."""
        return moment.to(parameter.device, non_blocking=True, copy=True) if self.brings else moment

    def write_back(self, moment: torch.Tensor, used: torch.Tensor) -> None:
        """Keep a moment as a step left it."""
        if self.brings:
            moment.copy_(used, non_blocking=moment.is_pinned())

    def for_products(self, values: torch.Tensor) -> torch.Tensor:
        """Values of parameters where large products are computed."""
        return values if self.card is None else values.to(self.card)


BESIDE: Final = MomentHome()
