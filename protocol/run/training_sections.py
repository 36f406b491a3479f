"""The sections [inner] and [outer] of run.toml: how each peer trains, and how a committed average moves the anchor."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from protocol.run.section import Count, Fraction, Section

_FIRST_INNER_KEYS: Final = frozenset(
    ["learning_rate", "beta1", "beta2", "weight_decay", "clip_norm", "warmup_tokens", "decay_fraction", "batch_tokens"]
)
"""Of the inner section; written in every manifest."""


class InnerSection(Section):
    """Local training: AdamW; warm-up, stable, decay, by the run's tokens.

    `optimizer` "muon" moves the matrices inside the model by Muon, and embeddings, head and norms by AdamW (peer/models/optimizer.py).
    `matrix_learning_rate` is Muon's; left out it is `learning_rate`, for its updates are as long as AdamW's (peer/models/muon.py).
    """

    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)]
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1
    clip_norm: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    warmup_tokens: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    decay_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    batch_tokens: Count
    optimizer: Literal["adamw", "muon"] = "adamw"
    matrix_learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    matrix_momentum: Fraction = 0.95

    @property
    def matrix_rate(self) -> float:
        """Of the matrices inside the model."""
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
    """How a committed average moves the anchor.

    With `momentum_from_steps` that is so in rounds that are due at so many local steps of each member or more; in shorter ones the
    plain mean is taken (protocol/rounds/schedule/outer_rule.py).
    """

    kind: Literal["mean", "nesterov"] = "mean"
    learning_rate: Annotated[float, Field(gt=0.0, le=10.0)] = 1.0
    momentum: Fraction = 0.0
    momentum_from_steps: Count | None = None

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return self.used(handler(self), frozenset(["kind", "learning_rate", "momentum"]))
