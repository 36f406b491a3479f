"""Plain mean: A <- A - eta U. With eta = 1 this is plain parameter averaging."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from averaging.arithmetic.outer.outer_kind import OuterKind, Vectors
from averaging.codecs import Codec
from averaging.codecs.compiled import BLOCKS
from protocol.rounds.messages.record import OuterStep


class Mean(OuterKind):
    """No state except the anchor."""

    name = "mean"

    def step_into(self, moved: Vectors, before: Vectors, update_n: torch.Tensor, numbers: OuterStep) -> None:
        """Two operations."""
        (moved_n,), (anchor_n,) = moved, before
        torch.mul(update_n, numbers.learning_rate, out=moved_n)
        torch.sub(anchor_n, moved_n, out=moved_n)

    def step_by_encoded(
        self,
        moved: Vectors,
        before: Vectors,
        codec: Codec,
        chunks: Sequence[bytes | memoryview],
        chunk_elements: int,
        numbers: OuterStep,
    ) -> bool:
        """Uses the compiled library if there is one."""
        (moved_n,), (anchor_n,) = moved, before
        return BLOCKS is not None and BLOCKS.step(
            codec, chunks, chunk_elements, numbers.learning_rate, anchor_n, moved_n
        )


KINDS = (Mean(),)
