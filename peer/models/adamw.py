"""AdamW by torch's functional form.

`torch.optim.AdamW` imports torch's compiler at its first use: 1.8 s of processor time in every training process that starts, as much
as torch itself. The arithmetic is the same, kernel for kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch.optim.adamw import adamw

from protocol.errors import LocalProtocolError

EPSILON: Final = 1e-8
"""The default of torch's own."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share a weight decay, and their moments: none before the first step."""

    parameters: Sequence[torch.nn.Parameter]
    weight_decay: float
    moments: dict[torch.nn.Parameter, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """First and second moment, of the parameter's shape, and a scalar that counts its steps."""


class AdamW:
    """Decoupled weight decay (1711.05101, algorithm 2) over groups of parameters; in place, like torch's."""

    def __init__(self, groups: Sequence[ParameterGroup], *, beta1: float, beta2: float) -> None:
        self._groups = tuple(groups)
        self._beta1 = beta1
        self._beta2 = beta2

    @property
    def has_moments(self) -> bool:
        """Whether a step was made, and with it the moments: two values for each parameter."""
        return any(group.moments for group in self._groups)

    @property
    def moments_bytes(self) -> int:
        """What the moments take once they are made."""
        parameters = [parameter for group in self._groups for parameter in group.parameters]
        return 2 * sum(parameter.numel() * parameter.element_size() for parameter in parameters)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for group in self._groups:
            for parameter in group.parameters:
                parameter.grad = None

    def moments(self) -> list[torch.Tensor]:
        """Of each parameter in order the first, the second and a scalar that counts its steps; none before the first step."""
        if not self.has_moments:
            return []
        each = [group.moments.get(p) or _begin(group, p) for group in self._groups for p in group.parameters]
        return [moment for moments in each for moment in moments]

    @torch.no_grad()
    def load_moments(self, moments: Sequence[torch.Tensor]) -> None:
        """Go on from a copy of what `moments` gave, here or elsewhere.

        Raises:
            LocalProtocolError: they are not those of as many parameters of these shapes.
        """
        parameters = [(group, parameter) for group in self._groups for parameter in group.parameters]
        if len(moments) not in (0, 3 * len(parameters)):
            raise LocalProtocolError(f"{len(moments)} moments", f"none, or {3 * len(parameters)}")
        for group in self._groups:
            group.moments.clear()
        for place, (group, parameter) in enumerate(parameters if moments else []):
            own = _begin(group, parameter)
            for room, moment in zip(own, moments[3 * place : 3 * place + 3], strict=True):
                if room.shape != moment.shape:
                    raise LocalProtocolError(f"a moment of shape {tuple(moment.shape)}", f"{tuple(room.shape)}")
                room.copy_(moment)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient."""
        for group in self._groups:
            moved = [parameter for parameter in group.parameters if parameter.grad is not None]
            moments = [group.moments.get(parameter) or _begin(group, parameter) for parameter in moved]
            adamw(
                list(moved),
                [parameter.grad for parameter in moved if parameter.grad is not None],
                [first for first, _, _ in moments],
                [second for _, second, _ in moments],
                [],
                [num_steps for _, _, num_steps in moments],
                amsgrad=False,
                beta1=self._beta1,
                beta2=self._beta2,
                lr=learning_rate,
                weight_decay=group.weight_decay,
                eps=EPSILON,
                maximize=False,
            )


def _begin(group: ParameterGroup, parameter: torch.nn.Parameter) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    first, second = (torch.zeros_like(parameter, memory_format=torch.preserve_format) for _ in range(2))
    moments = group.moments[parameter] = (first, second, torch.tensor(0.0))
    return moments
