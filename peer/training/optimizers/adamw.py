"""AdamW by torch's functional form, in one fused kernel where torch has it.

`torch.optim.AdamW` imports torch's compiler at its first use, which makes every start of a training process much slower
(measured; see tests/benchmarks/LOG.md). The arithmetic is the same, kernel for kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch.optim.adamw import adamw

from peer.training.optimizers.moment_home import BESIDE, MomentHome
from protocol.errors import LocalProtocolError

EPSILON: Final = 1e-8
"""torch's default."""

MOMENTS_EACH: Final = 3
"""Of a parameter: its first moment, its second, and the count of its steps."""

FUSED_DEVICES: Final = frozenset({"cpu", "cuda", "mps"})


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share a weight decay, and their moments, which are missing before the first step."""

    parameters: Sequence[torch.nn.Parameter]
    weight_decay: float
    moments: dict[torch.nn.Parameter, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """First and second moment, of the parameter's shape, and a scalar that counts its steps."""


class AdamW:
    """Decoupled weight decay (1711.05101, algorithm 2) over groups of parameters; in place, like torch's."""

    def __init__(
        self, groups: Sequence[ParameterGroup], *, beta1: float, beta2: float, home: MomentHome = BESIDE
    ) -> None:
        self._groups = tuple(groups)
        self._home = home
        self._beta1 = beta1
        self._beta2 = beta2

    @property
    def has_moments(self) -> bool:
        """Whether a step was made, which creates the moments: two values for each parameter."""
        return any(group.moments for group in self._groups)

    @property
    def moments_bytes(self) -> int:
        """Bytes of the moments beside the parameters, once they exist."""
        if self._home.is_away:
            return 0
        parameters = [parameter for group in self._groups for parameter in group.parameters]
        return 2 * sum(parameter.numel() * parameter.element_size() for parameter in parameters)

    @property
    def step_bytes(self) -> int:
        """Bytes that a step takes for a moment: a copy of the parameters without a fused kernel, and moments that are brought."""
        parameters = [parameter for group in self._groups for parameter in group.parameters]
        sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
        brought_bytes = 2 * max(sizes, default=0) if self._home.brings else 0
        return brought_bytes + (0 if _is_fused(parameters) else sum(sizes))

    def zero_grad(self) -> None:
        """Discard the gradients."""
        for group in self._groups:
            for parameter in group.parameters:
                parameter.grad = None

    def moments(self) -> list[torch.Tensor]:
        """For each parameter in order its first moment, its second, and a scalar that counts its steps; none before the first
        step.
        """
        if not self.has_moments:
            return []
        each = [group.moments.get(p) or self._begin(group, p) for group in self._groups for p in group.parameters]
        return [moment for moments in each for moment in moments]

    def owners(self) -> list[torch.nn.Parameter]:
        """The parameter of each moment."""
        return [parameter for group in self._groups for parameter in group.parameters for _ in range(MOMENTS_EACH)]

    @torch.no_grad()
    def load_moments(self, moments: Sequence[torch.Tensor]) -> None:
        """Continue from a copy of `moments`, of this peer or another.

        Raises:
            LocalProtocolError: they do not fit the number and shapes of the parameters.
        """
        parameters = [(group, parameter) for group in self._groups for parameter in group.parameters]
        if len(moments) not in (0, 3 * len(parameters)):
            raise LocalProtocolError(f"{len(moments)} moments", f"none, or {3 * len(parameters)}")
        for group in self._groups:
            group.moments.clear()
        for place, (group, parameter) in enumerate(parameters if moments else []):
            own = self._begin(group, parameter)
            for room, moment in zip(own, moments[3 * place : 3 * place + 3], strict=True):
                if room.shape != moment.shape:
                    raise LocalProtocolError(f"a moment of shape {tuple(moment.shape)}", f"{tuple(room.shape)}")
                room.copy_(moment)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient."""
        for group in self._groups:
            moved = [parameter for parameter in group.parameters if parameter.grad is not None]
            for together in self._home.together(moved):
                self._move(group, together, learning_rate)

    def _move(self, group: ParameterGroup, moved: Sequence[torch.nn.Parameter], learning_rate: float) -> None:
        moments = [group.moments.get(parameter) or self._begin(group, parameter) for parameter in moved]
        firsts = [self._home.brought(first, near) for near, (first, _, _) in zip(moved, moments, strict=True)]
        seconds = [self._home.brought(second, near) for near, (_, second, _) in zip(moved, moments, strict=True)]
        adamw(
            list(moved),
            [parameter.grad for parameter in moved if parameter.grad is not None],
            firsts,
            seconds,
            [],
            [num_steps for _, _, num_steps in moments],
            amsgrad=False,
            beta1=self._beta1,
            beta2=self._beta2,
            lr=learning_rate,
            weight_decay=group.weight_decay,
            eps=EPSILON,
            maximize=False,
            fused=_is_fused(moved),
        )
        for (first, second, _), new_first, new_second in zip(moments, firsts, seconds, strict=True):
            self._home.write_back(first, new_first)
            self._home.write_back(second, new_second)

    def _begin(
        self, group: ParameterGroup, parameter: torch.nn.Parameter
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first, second = (self._home.zeros(parameter) for _ in range(2))
        num_steps = torch.zeros((), dtype=torch.float32, device=parameter.device)
        moments = group.moments[parameter] = (first, second, num_steps)
        return moments


def _is_fused(parameters: Sequence[torch.Tensor]) -> bool:
    """Whether torch has one kernel for a whole step there. It reads and writes each value once, without temporary copies."""
    return all(parameter.device.type in FUSED_DEVICES and parameter.is_floating_point() for parameter in parameters)
