"""Selects a run's optimizer, and its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from peer.training.optimizers.adamw import AdamW, ParameterGroup
from peer.training.optimizers.adamw_int8 import AdamWInt8
from peer.training.optimizers.moment_home import MomentHome
from peer.training.optimizers.muon import Muon
from peer.training.plan.card_plan import FLOAT32, CardPlan
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import layer_of
from protocol.tensors.tensor_schema import TensorSchema


class Optimizer(Protocol):
    """The optimizer interface of local training. Its moments stay at the peer: they are neither averaged nor kept on disk. A
    restarted training process begins without them.
    """

    @property
    def has_moments(self) -> bool:
        """Whether a step was made, which creates the moments."""

    @property
    def moments_bytes(self) -> int:
        """Bytes of the moments once they exist."""

    @property
    def step_bytes(self) -> int:
        """Bytes that a step takes for a moment."""

    def zero_grad(self) -> None:
        """Discard the gradients."""

    def moments(self) -> list[torch.Tensor]:
        """The moments in a fixed order; none before the first step."""

    def owners(self) -> list[torch.nn.Parameter]:
        """The parameter of each moment, in the order of `moments`, also before the first step."""

    def load_moments(self, moments: Sequence[torch.Tensor]) -> None:
        """Continue from a copy of `moments`, of this peer or another. Raises LocalProtocolError if their number differs."""

    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient."""


@dataclass(frozen=True)
class MuonWithAdamW:
    """Muon for the matrices inside the model, AdamW for embeddings, head and norms.

    Attributes:
        matrix_share: Muon's learning rate over AdamW's.
    """

    muon: Muon
    adamw: AdamW | AdamWInt8
    matrix_share: float

    @property
    def has_moments(self) -> bool:
        """Whether a step was made."""
        return self.muon.has_moments or self.adamw.has_moments

    @property
    def moments_bytes(self) -> int:
        """Bytes of the moments of both."""
        return self.muon.moments_bytes + self.adamw.moments_bytes

    @property
    def step_bytes(self) -> int:
        """Bytes that a step takes for a moment. Both do not step at once."""
        return max(self.muon.step_bytes, self.adamw.step_bytes)

    def zero_grad(self) -> None:
        """Discard the gradients."""
        self.muon.zero_grad()
        self.adamw.zero_grad()

    def moments(self) -> list[torch.Tensor]:
        """Those of Muon, then those of AdamW."""
        return [*self.muon.moments(), *self.adamw.moments()]

    def owners(self) -> list[torch.nn.Parameter]:
        """The parameter of each moment."""
        return [*self.muon.owners(), *self.adamw.owners()]

    def load_moments(self, moments: Sequence[torch.Tensor]) -> None:
        """Continue from a copy of `moments`. Raises LocalProtocolError if their number differs."""
        num_momenta = len(self.muon.parameters) if moments else 0
        self.muon.load_moments(moments[:num_momenta])
        self.adamw.load_moments(moments[num_momenta:])

    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient; the rate is AdamW's."""
        self.muon.step(learning_rate * self.matrix_share)
        self.adamw.step(learning_rate)


def make_optimizer(
    inner: InnerSection,
    schema: TensorSchema,
    parameters: Sequence[torch.nn.Parameter],
    plan: CardPlan = FLOAT32,
    card: torch.device | None = None,
) -> Optimizer:
    """The manifest's optimizer, over parameters in the schema's order. Norms have no weight decay. The plan says
    where moments lie, and whether those of AdamW are in 8 bits; Muon's one momentum stays as it is. `card` is as of `MomentHome`.

    Muon moves the matrices of layers. The rows of all other matrices are tokens or positions. Each row has its own gradient, and
    making rows orthogonal gains nothing (Jordan 2024).
    """
    named = list(zip(schema.tensors, parameters, strict=True))
    vectors = [parameter for spec, parameter in named if len(spec.shape) < 2]
    matrices = [(layer_of(spec.name), parameter) for spec, parameter in named if len(spec.shape) >= 2]
    tables = [parameter for layer, parameter in matrices if layer is None]
    inside = [parameter for layer, parameter in matrices if layer is not None]
    decayed = tables if inner.optimizer == "muon" else [*tables, *inside]
    home = MomentHome(is_away=plan.offload != "none", card=card)
    groups = (ParameterGroup(decayed, inner.weight_decay), ParameterGroup(vectors, 0.0))
    adamw = (
        AdamWInt8(groups, beta1=inner.beta1, beta2=inner.beta2)
        if plan.moments == "int8"
        else AdamW(groups, beta1=inner.beta1, beta2=inner.beta2, home=home)
    )
    if inner.optimizer == "adamw":
        return adamw
    muon = Muon(inside, momentum=inner.matrix_momentum, weight_decay=inner.weight_decay, home=home)
    return MuonWithAdamW(muon, adamw, inner.matrix_rate / inner.learning_rate)
