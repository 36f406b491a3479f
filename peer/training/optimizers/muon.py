"""Muon: momentum with an orthogonalised direction, for the matrices inside a model (Jordan 2024,
kellerjordan.github.io/posts/muon).

Like torch's own, but without `torch.optim`, whose import makes every start of a training process slower (measured; see
tests/benchmarks/LOG.md).

Shapes: R rows and C columns of a matrix. Leading dimensions are a batch of independent matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

import torch

from peer.training.optimizers.moment_home import BESIDE, MomentHome
from protocol.errors import LocalProtocolError

COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic a x + b x^3 + c x^5, which moves singular values towards 1. It is steep at 0, so that five steps
are enough, and does not converge: they end between 0.68 and 1.14.
"""

NUM_STEPS: Final = 5
NORM_FLOOR: Final = 1e-7

RMS: Final = 0.2
"""Root mean square of an update's values at a learning rate of 1, about that of AdamW, so that one learning rate suits both
(2502.16982, section 2.2).
"""

STACKED_VALUES: Final = 1 << 20
"""Small matrices of one shape are processed together up to this number of values. A large matrix uses all cores by itself."""


def orthogonalised(matrices: torch.Tensor) -> torch.Tensor:
    """Roughly the nearest matrix with orthonormal rows or columns, whichever are fewer: (..., R, C) to (..., R, C) of the same
    dtype.

    Five steps of the Newton-Schulz iteration. A matrix of zeros stays zero. On a graphics card it computes in bfloat16, which is
    as precise as the iteration itself.
    """
    work = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    is_tall = work.shape[-2] > work.shape[-1]
    work = work.mT if is_tall else work
    work = work / work.norm(dim=(-2, -1), keepdim=True).clamp(min=NORM_FLOOR)
    first, third, fifth = COEFFICIENTS
    for _ in range(NUM_STEPS):
        squares = work @ work.mT
        work = first * work + (third * squares + fifth * (squares @ squares)) @ work
    found: torch.Tensor = work.mT if is_tall else work
    return found.to(matrices.dtype)


def update_scale(num_rows: int, num_columns: int) -> float:
    """Factor that gives an orthogonal update's values the root mean square `RMS`. R x C orthogonal rows or columns have 1 /
    sqrt(max(R, C)).
    """
    return RMS * sqrt(max(num_rows, num_columns))


@dataclass(frozen=True)
class Muon:
    """Decoupled weight decay and Nesterov's momentum; in place.

    Attributes:
        parameters: matrices, (..., R, C).
        momenta: of the parameter's shape, by parameter; none before the first step.
    """

    parameters: Sequence[torch.nn.Parameter]
    momentum: float
    weight_decay: float
    home: MomentHome = BESIDE
    momenta: dict[torch.nn.Parameter, torch.Tensor] = field(default_factory=dict)

    @property
    def has_moments(self) -> bool:
        """Whether a step was made, which creates the momenta: one value for each parameter."""
        return bool(self.momenta)

    @property
    def moments_bytes(self) -> int:
        """Bytes of the momenta beside the parameters, once they exist."""
        if self.home.is_away:
            return 0
        return sum(parameter.numel() * parameter.element_size() for parameter in self.parameters)

    @property
    def step_bytes(self) -> int:
        """Bytes that a step takes for a moment, at the largest group of matrices that is processed together: the directions, their
        copy in the iteration's type, and four results of products of at most that size.
        """
        largest = max((sum(parameter.numel() for parameter in alike) for alike in _alike(self.parameters)), default=0)
        return 6 * 4 * largest

    def zero_grad(self) -> None:
        """Discard the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def moments(self) -> list[torch.Tensor]:
        """Momenta in the order of the parameters; none before the first step."""
        if not self.has_moments:
            return []
        return [self._momentum(parameter) for parameter in self.parameters]

    def owners(self) -> list[torch.nn.Parameter]:
        """The parameter of each momentum."""
        return list(self.parameters)

    @torch.no_grad()
    def load_moments(self, moments: Sequence[torch.Tensor]) -> None:
        """Continue from a copy of `moments`, of this peer or another.

        Raises:
            LocalProtocolError: they do not fit the number and shapes of the parameters.
        """
        if len(moments) not in (0, len(self.parameters)):
            raise LocalProtocolError(f"{len(moments)} momenta", f"none, or {len(self.parameters)}")
        self.momenta.clear()
        for parameter, moment in zip(self.parameters if moments else [], moments, strict=True):
            if parameter.shape != moment.shape:
                raise LocalProtocolError(f"a momentum of shape {tuple(moment.shape)}", f"{tuple(parameter.shape)}")
            self._momentum(parameter).copy_(moment)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient."""
        for alike in _alike([parameter for parameter in self.parameters if parameter.grad is not None]):
            stacked = torch.stack([self._direction(parameter) for parameter in alike])
            directions = orthogonalised(self.home.for_products(stacked)).to(stacked.device)
            scale = learning_rate * update_scale(*alike[0].shape[-2:])
            for parameter, direction in zip(alike, directions, strict=True):
                parameter.mul_(1.0 - learning_rate * self.weight_decay)
                parameter.sub_(direction, alpha=scale)

    def _direction(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """The momentum is a mean of gradients, and is mixed with the gradient again: m <- mu m + (1 - mu) g; mu m + (1 - mu) g."""
        gradient = parameter.grad
        if gradient is None:
            return torch.zeros_like(parameter)
        kept = self._momentum(parameter)
        momentum = self.home.brought(kept, parameter)
        momentum.lerp_(gradient, 1.0 - self.momentum)
        self.home.write_back(kept, momentum)
        return gradient.lerp(momentum, self.momentum)

    def _momentum(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        momentum = self.momenta.get(parameter)
        if momentum is None:
            momentum = self.momenta[parameter] = self.home.zeros(parameter)
        return momentum


def _alike(parameters: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """Parameters of one shape, in groups that are processed together."""
    shapes: dict[torch.Size, list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        shapes.setdefault(parameter.shape, []).append(parameter)
    for shape, found in shapes.items():
        size = max(1, STACKED_VALUES // shape.numel())
        yield from (found[i : i + size] for i in range(0, len(found), size))
