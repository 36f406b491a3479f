"""A unit's state in the files of a checkpoint: its root, and the state itself if somebody needs it. Blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


class StoredState:
    """The state of one unit in two files of tensors. Only the heads of the files are in memory.

    Attributes:
        expected: the root that the manifest names.
        anchor, momentum: the two vectors.
    """

    def __init__(
        self, header: StateHeader, schema: TensorSchema, grid: ChunkGrid, expected: Root, files: tuple[Path, Path]
    ) -> None:
        """Open the two files, of the parameters and of the momentum.

        Raises:
            StorageError: a file cannot be read, or lacks a tensor of the unit.
        """
        self.header, self.schema, self.grid, self.expected = header, schema, grid, expected
        with reading():
            self.anchor, self.momentum = (StoredVector(file, schema) for file in files)

    def root(self) -> Root:
        """The root of what the files hold, read a chunk at a time.

        Raises:
            StorageError: a file cannot be read.
        """
        leaves = []
        with reading():
            for chunk in range(self.grid.num_chunks):
                span = self.grid.bounds(chunk)
                leaves.append(chunk_leaf(*(leaf_hash(vector.read(*span)) for vector in (self.anchor, self.momentum))))
        return root_of(self.header, leaves)

    def load(self) -> UnitState:
        """The state, in memory.

        Raises:
            StorageError: a file cannot be read.
        """
        header, anchor_N = self.header, self.load_anchor()
        with reading():
            momentum_N = self.momentum.vector()
        return UnitState(header.unit, header.head, header.index, header.total_tokens, anchor_N, momentum_N)

    def load_anchor(self) -> torch.Tensor:
        """(N,) float32: the parameters alone. Raises as `load`."""
        with reading():
            return self.anchor.vector()


@contextmanager
def reading() -> Iterator[None]:
    """Turn an OSError into a StorageError that names the file."""
    try:
        yield
    except OSError as error:
        found = f"{error.filename or 'a file of tensors'} cannot be read ({error.strerror})"
        raise StorageError(found, "a readable checkpoint", "use an older one: potluck checkpoint list") from error
