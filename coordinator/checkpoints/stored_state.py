"""A unit's state in the files of a checkpoint: its root, and the state itself if somebody needs it. Blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from averaging.state.state import StateHeader, UnitState, chunk_leaf, root_of
from coordinator.checkpoints.tensor_files import StoredVector
from protocol.errors import StorageError
from protocol.ids import Root
from protocol.merkle import leaf_hash
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class StoredPlace:
    """The files of a unit's state. An old checkpoint has no momentum, but the hash of each of its chunks."""

    parameters: Path
    momentum: Path | None
    momentum_hashes: Sequence[bytes] = ()


class StoredState:
    """The state of one unit in two files of tensors. Only the heads of the files are in memory.

    Attributes:
        expected: the root that the manifest names.
        anchor, momentum: the two vectors; an old checkpoint has no momentum.
    """

    def __init__(
        self, header: StateHeader, schema: TensorSchema, grid: ChunkGrid, expected: Root, place: StoredPlace
    ) -> None:
        """Open the files.

        Raises:
            StorageError: a file cannot be read, or lacks a tensor of the unit.
        """
        self.header, self.schema, self.grid, self.expected = header, schema, grid, expected
        self._hashes = place.momentum_hashes
        with reading():
            self.anchor = StoredVector(place.parameters, schema)
            self.momentum = None if place.momentum is None else StoredVector(place.momentum, schema)

    def root(self) -> Root:
        """The root of what the files hold, read a chunk at a time.

        Raises:
            StorageError: a file cannot be read, or is too short.
        """
        hashes = self.momentum_hashes()
        if len(hashes) != self.grid.num_chunks:
            found = f"{len(hashes)} hashes of the momentum of {self.schema.unit}"
            raise StorageError(found, f"{self.grid.num_chunks}", "use an older one: potluck checkpoint list")
        return root_of(self.header, list(map(chunk_leaf, _hashes_of(self.anchor, self.grid), hashes)))

    def momentum_hashes(self) -> Sequence[bytes]:
        """The hash of each chunk of the momentum: of what its file holds or, in an old checkpoint, as they were written.

        Raises:
            StorageError: a file cannot be read.
        """
        return self._hashes if self.momentum is None else _hashes_of(self.momentum, self.grid)

    def load(self) -> UnitState:
        """The state, in memory.

        Raises:
            StorageError: a file cannot be read, or there is no momentum.
        """
        if self.momentum is None:
            found = f"an old checkpoint of {self.schema.unit}, without momentum"
            raise StorageError(found, "a whole one", "take one of the newest: potluck checkpoint list")
        anchor_N = self.load_anchor()
        with reading():
            momentum_N = self.momentum.vector()
        return self._with(anchor_N, momentum_N)

    def load_without_momentum(self) -> UnitState:
        """The state with a momentum of zeros, as where a run begins with weights: all that an old checkpoint tells. Its root is not
        `expected`. Raises as `load`.
        """
        anchor_N = self.load_anchor()
        return self._with(anchor_N, anchor_N.new_zeros(anchor_N.shape))

    def _with(self, anchor_N: torch.Tensor, momentum_N: torch.Tensor) -> UnitState:
        header = self.header
        return UnitState(header.unit, header.head, header.index, header.total_tokens, anchor_N, momentum_N)

    def load_anchor(self) -> torch.Tensor:
        """(N,) float32: the parameters alone. Raises as `load`."""
        with reading():
            return self.anchor.vector()


def _hashes_of(vector: StoredVector, grid: ChunkGrid) -> list[bytes]:
    with reading():
        return [leaf_hash(vector.read(*grid.bounds(chunk))) for chunk in range(grid.num_chunks)]


@contextmanager
def reading() -> Iterator[None]:
    """Turn an OSError into a StorageError that names the file."""
    try:
        yield
    except OSError as error:
        found = f"{error.filename or 'a file of tensors'} cannot be read ({error.strerror})"
        raise StorageError(found, "a readable checkpoint", "use an older one: potluck checkpoint list") from error
