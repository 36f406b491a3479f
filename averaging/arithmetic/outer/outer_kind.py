"""What the module of an outer step has to give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import torch

from averaging.codecs import Codec
from protocol.rounds.messages.messages import OuterStep

Vectors: TypeAlias = tuple[torch.Tensor, ...]
"""The anchor, and behind it as many state vectors as the step's line in protocol/kinds/outer_table.py says."""


class OuterKind(ABC):
    """The arithmetic of one outer step. Single IEEE operations only, one torch call each: all peers have to get the same bytes."""

    name: str

    @abstractmethod
    def step_into(self, moved: Vectors, before: Vectors, update_n: torch.Tensor, numbers: OuterStep) -> None:
        """Write the anchor and the state after one commit into `moved`: every value of every vector.

        A call may get a part of the vectors only, so that no value may depend on another value's place.

        Args:
            moved: (n,) float32 each, or float64 for proofs; holds whatever was in that memory. Put intermediate values here, too: new
                memory costs more than the arithmetic.
            before: (n,) each, the same vectors before the commit; not to be written.
            update_n: (n,) the mean of what the members' anchors lost; not to be written.
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
        """As `step_into`, from the encoded update, whole chunks, in one pass. False where that cannot be, or where the update is to be
        refused: the caller decodes it then.
        """
        return False
