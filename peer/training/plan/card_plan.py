"""How one card trains a model."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

Precision = Literal["fp32", "bf16", "fp16"]
"""Type that matrix products are computed in. Parameters and moments are float32 whatever it is."""

Checkpointing = Literal["none", "selective", "full"]
"""Activations that a forward pass does not keep. They are computed again in the backward pass: none, all but the results of matrix
products and of attention, or all but each layer's input.
"""

Moments = Literal["exact", "int8"]
"""How the optimizer's moments are stored: in float32, or in blocks of 8 bits."""

Offload = Literal["none", "moments", "all"]
"""Values that lie in the machine's memory: none, the moments, or also the float32 parameters and the sums of their gradients. The card
then has copies of the parameters in the type of its products.
"""


Fit = Literal["auto", "fast", "small", "smallest"]
"""Memory of the card to spare: as the card needs, none, or more than it needs."""

WishedPrecision = Literal["auto", "fp32", "bf16", "fp16"]

Switch = Literal["auto", "on", "off"]


class Wishes(BaseModel):
    """The part of a plan that the volunteer fixes. The card decides the rest.

    Attributes:
        compiles: "on" and "auto" compile where that works.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fit: Fit = "auto"
    precision: WishedPrecision = "auto"
    compiles: Switch = "auto"


class CardPlan(BaseModel):
    """How one card trains a model. It changes rounding, memory and speed, but never what is trained: tokens of each step, one clip
    by the norm of the whole gradient, float32 parameters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    precision: Precision = "fp32"
    is_compiled: bool = False
    checkpointing: Checkpointing = "none"
    moments: Moments = "exact"
    offload: Offload = "none"


FLOAT32: Final = CardPlan()
"""Everything in float32 and nothing spared."""
