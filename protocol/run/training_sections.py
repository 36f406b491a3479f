"""The sections [inner] and [outer] of run.toml: how each peer trains, and how a committed average moves the anchor."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from protocol.kinds.outer_table import OUTER_STEPS, with_momentum
from protocol.run.section import Count, Fraction, OneOf, Section

_FIRST_INNER_KEYS: Final = frozenset(
    ["learning_rate", "beta1", "beta2", "weight_decay", "clip_norm", "warmup_tokens", "decay_fraction", "batch_tokens"]
)
"""Keys of the inner section that every manifest has."""


class InnerSection(Section):
    """Local training on every peer. The learning rate warms up, stays, and decays by the tokens of the run."""

    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)]
    """Peak learning rate. Lower it where the loss jumps."""

    beta1: Fraction = 0.9
    """Decay of AdamW's mean of gradients."""

    beta2: Fraction = 0.95
    """Decay of AdamW's mean of squared gradients."""

    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1
    """Weight decay of matrices."""

    clip_norm: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """Largest norm of a gradient; longer ones are scaled down to it."""

    warmup_tokens: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    """Tokens of the run over which the learning rate rises from zero."""

    decay_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    """Share of the run, at its end, over which the learning rate falls to zero."""

    batch_tokens: Count
    """Tokens of a local step, a multiple of model.context_tokens."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """How parameters move: "muon" moves the matrices inside the model by Muon, and embeddings, head and norms by AdamW. "adamw"
    moves all by AdamW.
    """

    matrix_learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Learning rate of Muon. The same as `learning_rate` if not given; its updates are as long as AdamW's."""

    matrix_momentum: Fraction = 0.95
    """Momentum of Muon."""

    moments: Literal["exact", "int8"] = "exact"
    """How peers store AdamW's moments: "exact" in float32; with "int8", a peer whose card is too small may store them in 8 bits. That
    changes its steps by about a hundredth.
    """

    @property
    def matrix_rate(self) -> float:
        """Learning rate of the matrices inside the model."""
        return self.learning_rate if self.matrix_learning_rate is None else self.matrix_learning_rate

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return self.used(handler(self), _FIRST_INNER_KEYS)

    @model_validator(mode="after")
    def _check_matrix_keys(self) -> InnerSection:
        for key in ("matrix_learning_rate", "matrix_momentum"):
            if key in self.model_fields_set and self.optimizer != "muon":
                raise ValueError(f'{key} {getattr(self, key)} belongs to optimizer = "muon"')
        return self


class OuterSection(Section):
    """How the average of a round moves the model."""

    kind: Annotated[str, OneOf(OUTER_STEPS)] = "mean"
    """How the model moves: "mean" takes the plain mean, which suits short rounds. "nesterov" adds Nesterov momentum, which suits
    long ones.
    """

    learning_rate: Annotated[float, Field(gt=0.0, le=10.0)] = 1.0
    """Share of the average by which the model moves. With "nesterov", 0.7 is a usual value. With codec "topk", try 2: a round moves
    few values, and later rounds bring the rest.
    """

    momentum: Fraction = 0.0
    """Momentum of "nesterov", of which 0.9 is a usual value; 0 with "mean"."""

    momentum_from_steps: Count | None = None
    """Local steps of each member below which a round takes the plain mean instead. Every round takes the momentum if not given."""

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return self.used(handler(self), frozenset(["kind", "learning_rate", "momentum"]))

    @model_validator(mode="after")
    def _check_momentum(self) -> OuterSection:
        if self.momentum and not OUTER_STEPS[self.kind].takes_momentum:
            raise ValueError(f'momentum {self.momentum} with kind = "{self.kind}": expected 0, or {with_momentum()}')
        return self
