"""How the cards of one machine train one peer's model together. Pure.

Islands: each card, or group of cards, holds a replica of its own and trains on its own text; the peer averages their parameters before
it contributes. Ranks: the cards of one group share one replica and take each step together.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, PositiveInt, model_validator

WishedSplit = Literal["auto", "islands", "shard", "context", "tensor"]
"""How several cards train: each for itself, or one replica by the rows of its parameters, by the tokens of each sequence, or by the
products of each layer.
"""


class Mesh(BaseModel):
    """How the ranks of one group share a replica. Rank r has place r % tensor among those that split layers, and place r // tensor
    among those that hold rows; `context` neighbours of the latter share the tokens of each sequence.

    Ranks that are copies hold all of it instead, and share the sequences only.

    Attributes:
        shard: ranks that hold the rows of each parameter.
        tensor: ranks that split the products of each layer.
        context: of `shard`, how many share each sequence; it divides `shard`.
        copies: ranks that hold all of each parameter; only as the one way in which a group shares.
        keeps_parameters: whether gathered parameters are kept from the forward to the backward pass: faster, with more memory.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    shard: PositiveInt = 1
    tensor: PositiveInt = 1
    context: PositiveInt = 1
    copies: PositiveInt = 1
    keeps_parameters: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shard % self.context:
            raise ValueError(f"{self.context} ranks for each sequence of {self.shard}; expected a divisor")
        if self.copies > 1 and self.shard * self.tensor > 1:
            raise ValueError(f"{self.copies} copies of {self.shard * self.tensor} parts; expected one of both")
        return self

    @property
    def num_ranks(self) -> int:
        """Processes, one on each card."""
        return self.copies * self.shard * self.tensor

    @property
    def readers(self) -> int:
        """Groups of ranks that read sequences of their own."""
        return self.copies * self.shard // self.context


class World(BaseModel):
    """One replica, and the devices that hold it.

    Attributes:
        devices: torch's names, as "cuda:1", one for each rank of the mesh; "cpu" may be named several times.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    devices: tuple[str, ...] = ("auto",)
    mesh: Mesh = Mesh()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.devices) != self.mesh.num_ranks:
            raise ValueError(f"{len(self.devices)} devices for {self.mesh.num_ranks} ranks; expected as many")
        return self


class Layout(BaseModel):
    """All replicas of a peer.

    Attributes:
        worlds: at least one; several are islands.
        reason: why it is so, in one line; empty for one card.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    worlds: tuple[World, ...] = (World(),)
    reason: str = ""
