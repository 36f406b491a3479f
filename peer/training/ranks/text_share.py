"""The sequences of a step that one rank reads, and how much each pass counts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from peer.training.plan.layout import Mesh
from peer.training.plan.split_core import reader_of


@dataclass(frozen=True, slots=True)
class Part:
    """One pass: the first tokens of its windows, and its share of the step's mean loss."""

    starts: tuple[int, ...]
    weight: float

    def factor(self, *, is_marked: bool) -> float:
        """The factor of its loss in that of the step: its share, for a loss that is a mean. If only some tokens count, the loss is
        divided by those of the whole step already.
        """
        return float(self.weight > 0.0) if is_marked else self.weight


@dataclass(frozen=True, slots=True)
class TextShare:
    """Every `readers`-th sequence, from the `reader`-th on; `context` ranks share each.

    All ranks have as many passes, because they take them together. A rank without a sequence of its own for the last one computes
    the step's first with a weight of 0.
    """

    readers: int = 1
    reader: int = 0
    context: int = 1

    @property
    def is_all(self) -> bool:
        """Whether one process reads all of it."""
        return self.readers * self.context == 1

    def most(self, sequences: int) -> int:
        """Sequences of a step that one rank reads at most."""
        return -(-sequences // self.readers)

    def parts(self, starts: Sequence[int], size: int) -> list[Part]:
        """The passes of this rank, of at most `size` sequences each, over the windows of a whole step."""
        own = tuple(starts[self.reader :: self.readers])
        cut = [own[begin : begin + size] for begin in range(0, self.most(len(starts)), size)]
        return [Part(part or (starts[0],), len(part) / len(starts) / self.context) for part in cut]


def share_of(mesh: Mesh, rank: int) -> TextShare:
    """That of a rank."""
    return TextShare(mesh.readers, reader_of(mesh, rank), mesh.context)


ALL_TEXT: Final = TextShare()
"""That of one process alone."""
