"""The interface of an outer step's module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import torch

from averaging.codecs import Codec
from protocol.rounds.messages.record import OuterStep

Vectors: TypeAlias = tuple[torch.Tensor, ...]
"""The anchor, followed by as many state vectors as the step's line in protocol/kinds/outer_table.py says."""


class OuterKind(ABC):
    """The arithmetic of one outer step. Use single IEEE operations only, one torch call each, so that all peers get the same bytes."""

    name: str

    @abstractmethod
    def step_into(self, moved: Vectors, before: Vectors, update_n: torch.Tensor, numbers: OuterStep) -> None:
        """Write the anchor and the state after one commit into `moved`: every value of every vector.

        A call may get only a part of the vectors, so a value must not depend on another value's place.

        Args:
            moved: (n,) float32 each, or float64 for proofs; uninitialised. Write intermediate values here, too, since new memory
                costs more than the arithmetic.
            before: (n,) each, the same vectors before the commit; read-only.
            update_n: (n,), the mean of the members' deltas; read-only.
            numbers: learning rate and momentum.
        """

    def step_by_encoded(
        self,
        moved: Vectors,
        before: Vectors,
        codec: Codec,
        chunks: Sequence[bytes | memoryview],
        chunk_elements: int,
        numbers: OuterStep,
    ) -> bool:
        """As `step_into`, in one pass over the encoded update of whole chunks. Returns False if that is not possible, or the update
        must be refused: the caller then decodes it.
        """
        return False
