"""Which optimizer a run trains with, over which parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from peer.models.adamw import AdamW, ParameterGroup
from peer.models.muon import Muon
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import layer_of
from protocol.tensors.tensor_schema import TensorSchema


class Optimizer(Protocol):
    """What local training asks of one. Its moments stay with the peer: they are neither averaged nor kept on disk, and a training
    process that is started again begins without.
    """

    @property
    def has_moments(self) -> bool:
        """Whether a step was made, and with it the moments."""

    @property
    def moments_bytes(self) -> int:
        """What the moments take once they are made."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def moments(self) -> list[torch.Tensor]:
        """The moments themselves in a fixed order; none before the first step."""

    def load_moments(self, moments: Sequence[torch.Tensor]) -> None:
        """Go on from a copy of what `moments` gave, here or elsewhere. Raises LocalProtocolError where they are another number."""

    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient."""


@dataclass(frozen=True)
class MuonBesideAdamW:
    """Muon for the matrices inside the model, AdamW for embeddings, head and norms.

    Attributes:
        matrix_share: Muon's learning rate over AdamW's.
    """

    muon: Muon
    adamw: AdamW
    matrix_share: float

    @property
    def has_moments(self) -> bool:
        """Whether a step was made."""
        return self.muon.has_moments or self.adamw.has_moments

    @property
    def moments_bytes(self) -> int:
        """What the moments of both take."""
        return self.muon.moments_bytes + self.adamw.moments_bytes

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.muon.zero_grad()
        self.adamw.zero_grad()

    def moments(self) -> list[torch.Tensor]:
        """Those of Muon, then those of AdamW."""
        return [*self.muon.moments(), *self.adamw.moments()]

    def load_moments(self, moments: Sequence[torch.Tensor]) -> None:
        """Go on from a copy of what `moments` gave. Raises LocalProtocolError where they are another number."""
        num_momenta = len(self.muon.parameters) if moments else 0
        self.muon.load_moments(moments[:num_momenta])
        self.adamw.load_moments(moments[num_momenta:])

    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient; the rate is AdamW's."""
        self.muon.step(learning_rate * self.matrix_share)
        self.adamw.step(learning_rate)


def make_optimizer(inner: InnerSection, schema: TensorSchema, parameters: Sequence[torch.nn.Parameter]) -> Optimizer:
    """The manifest's, over parameters in the schema's order. Norms have no weight decay.

    Muon moves the matrices of layers. The rows of all other ones are tokens, or positions: each row has a gradient of its own, and
    making rows orthogonal gains nothing (Jordan 2024).
    """
    named = list(zip(schema.tensors, parameters, strict=True))
    vectors = [parameter for spec, parameter in named if len(spec.shape) < 2]
    matrices = [(layer_of(spec.name), parameter) for spec, parameter in named if len(spec.shape) >= 2]
    tables = [parameter for layer, parameter in matrices if layer is None]
    inside = [parameter for layer, parameter in matrices if layer is not None]
    decayed = tables if inner.optimizer == "muon" else [*tables, *inside]
    adamw = AdamW(
        (ParameterGroup(decayed, inner.weight_decay), ParameterGroup(vectors, 0.0)),
        beta1=inner.beta1,
        beta2=inner.beta2,
    )
    if inner.optimizer == "adamw":
        return adamw
    muon = Muon(inside, momentum=inner.matrix_momentum, weight_decay=inner.weight_decay)
    return MuonBesideAdamW(muon, adamw, inner.matrix_rate / inner.learning_rate)
