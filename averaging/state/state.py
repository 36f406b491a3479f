"""A unit's outer state and its Merkle root: the proof of "same commit id, same bytes".

The state is cut on the unit's chunk grid. Chunk i is the anchor's chunk followed by the momentum's, little-endian float32. Its leaf
is the node over the hashes of these two halves, so that an unused momentum is hashed only once. The state root is the Merkle root
over the header's leaf and the chunks' leaves.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, Root, UnitName
from protocol.merkle import leaf_hash, merkle_root, node_hash
from protocol.tensors.tensor_schema import ChunkGrid

_HEADER: Final = struct.Struct("<32sQQH")
MAX_UNIT_NAME_BYTES: Final = 256
_VALUE_BYTES: Final = 4
STATE_BYTES_PER_VALUE: Final = 2 * _VALUE_BYTES
"""Anchor and momentum, float32 each."""


@dataclass(frozen=True, slots=True)
class StateHeader:
    """The identity of a state."""

    unit: UnitName
    head: CommitId
    index: int
    total_tokens: int

    def to_bytes(self) -> bytes:
        """Canonical bytes; part of the state root."""
        name = self.unit.encode()
        return _HEADER.pack(self.head, self.index, self.total_tokens, len(name)) + name


def header_from_bytes(data: bytes) -> StateHeader:
    """Read a header.

    Raises:
        RemoteProtocolError: not a header.
    """
    if not _HEADER.size <= len(data) <= _HEADER.size + MAX_UNIT_NAME_BYTES:
        raise RemoteProtocolError(f"a state header of {len(data)} bytes", f"{_HEADER.size} and a unit name")
    head, index, total_tokens, length = _HEADER.unpack_from(data)
    name = data[_HEADER.size :]
    if len(name) != length or not name.isascii():
        raise RemoteProtocolError(f"a unit name of {len(name)} bytes", f"{length} letters")
    return StateHeader(UnitName(name.decode("ascii")), CommitId(head), index, total_tokens)


@dataclass(frozen=True, slots=True)
class UnitState:
    """Outer state of a unit at a commit. The tensors are (N,) float32 on the CPU. Only the chain that holds the state may change them
    in place, while it has lent them to nobody (rounds/lineage/unit_chain.py).
    """

    unit: UnitName
    head: CommitId
    index: int
    total_tokens: int
    anchor_N: torch.Tensor
    momentum_N: torch.Tensor

    @property
    def header(self) -> StateHeader:
        """The identity of this state."""
        return StateHeader(self.unit, self.head, self.index, self.total_tokens)

    @property
    def vectors(self) -> tuple[torch.Tensor, ...]:
        """The anchor and what the outer step keeps beside it, (N,) float32 each, in the order of the fields."""
        return self.anchor_N, self.momentum_N


def absent_state(header: StateHeader, num_values: int) -> UnitState:
    """A state whose values are not in memory: zeros of NumPy take none until they are written."""
    zeros_N = torch.from_numpy(np.zeros(num_values, dtype=np.float32))
    return UnitState(header.unit, header.head, header.index, header.total_tokens, zeros_N, zeros_N)


def is_absent(state: UnitState) -> bool:
    """Whether a state was made by `absent_state`. No other one has one vector for both."""
    return state.anchor_N is state.momentum_N


def state_chunks(state: UnitState, grid: ChunkGrid) -> list[tuple[memoryview, memoryview]]:
    """Views of each chunk's bytes, anchor and momentum: hashing and writing a state need no copy."""
    anchor, momentum = (
        vector_N.contiguous().numpy().astype("<f4", copy=False).data.cast("B")
        for vector_N in (state.anchor_N, state.momentum_N)
    )
    spans = [slice(*(_VALUE_BYTES * place for place in grid.bounds(chunk))) for chunk in range(grid.num_chunks)]
    return [(anchor[span], momentum[span]) for span in spans]


def chunk_leaf(anchor_hash: bytes, momentum_hash: bytes) -> bytes:
    """The leaf of a chunk in the tree of a state, from the leaf hashes of its two halves."""
    return node_hash(anchor_hash, momentum_hash)


def leaf_of_chunk(data: bytes | memoryview) -> bytes:
    """The leaf of a chunk in one piece, as on disk and on the wire. The length is not checked."""
    view, half = memoryview(data), len(data) // 2
    return chunk_leaf(leaf_hash(view[:half]), leaf_hash(view[half:]))


def chunk_hashes(state: UnitState, grid: ChunkGrid) -> tuple[bytes, ...]:
    """Leaves of all chunks."""
    return tuple(chunk_leaf(*map(leaf_hash, parts)) for parts in state_chunks(state, grid))


def root_of(header: StateHeader, hashes: Sequence[bytes]) -> Root:
    """The state root from a header and the chunks' leaf hashes."""
    return merkle_root([leaf_hash(header.to_bytes()), *hashes])


def state_root(state: UnitState, grid: ChunkGrid) -> Root:
    """The Merkle root that two peers compare."""
    return root_of(state.header, chunk_hashes(state, grid))


class StateHashes:
    """Computes state roots, one after another. The hashes of an unchanged momentum, as with the outer step "mean", are cached."""

    def __init__(self, grid: ChunkGrid) -> None:
        self._grid = grid
        self._known: tuple[weakref.ref[torch.Tensor], tuple[bytes, ...]] | None = None
        """The last momentum, and the leaf hashes of its chunks."""

    def forget(self) -> None:
        """Call before the vectors of a state are changed in place."""
        self._known = None

    def root(self, state: UnitState) -> Root:
        """As `state_root`; may be called on any thread."""
        known, chunks = self._known, state_chunks(state, self._grid)
        if known is not None and known[0]() is state.momentum_N:
            momentum = known[1]
        else:
            momentum = tuple(leaf_hash(own) for _, own in chunks)
            self._known = weakref.ref(state.momentum_N), momentum
        leaves = [chunk_leaf(leaf_hash(anchor), own) for (anchor, _), own in zip(chunks, momentum, strict=True)]
        return root_of(state.header, leaves)


class StateParts:
    """A state that is put together chunk by chunk, in any order. Each chunk is copied.

    Besides the state it needs memory for one chunk. A momentum of zeros takes no memory.
    """

    def __init__(self, header: StateHeader, grid: ChunkGrid) -> None:
        self._header = header
        self._grid = grid
        self._anchor_N = np.empty(grid.num_elements, dtype=np.float32)
        # zeros of NumPy take no memory until they are written
        self._momentum_N = np.zeros(grid.num_elements, dtype=np.float32)
        self._here: set[int] = set()
        self._is_finite = True
        self.num_bytes = 0
        """Bytes of the chunks so far."""

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._here

    def put(self, chunk: int, data: bytes | memoryview) -> None:
        """Add a chunk that was checked against a root; adding it again changes nothing.

        Raises:
            RemoteProtocolError: a wrong length.
        """
        begin, stop = self._grid.bounds(chunk)
        if len(data) != STATE_BYTES_PER_VALUE * (stop - begin):
            expected = f"{STATE_BYTES_PER_VALUE * (stop - begin)} bytes"
            raise RemoteProtocolError(f"state chunk {chunk} of {len(data)} bytes", expected)
        if chunk in self._here:
            return
        values = np.frombuffer(data, dtype="<f4")
        momentum = values[stop - begin :]
        self._is_finite = self._is_finite and bool(np.isfinite(values).all())
        self._anchor_N[begin:stop] = values[: stop - begin]
        if momentum.view("<u4").any():  # the bytes, because a negative zero is a value of its own
            self._momentum_N[begin:stop] = momentum
        self._here.add(chunk)
        self.num_bytes += len(data)

    def whole(self) -> UnitState:
        """The state.

        Raises:
            RemoteProtocolError: chunks are missing, or values are not finite.
        """
        if len(self._here) != self._grid.num_chunks:
            raise RemoteProtocolError(f"{len(self._here)} state chunks", f"{self._grid.num_chunks}")
        if not self._is_finite:
            raise RemoteProtocolError("a state with values that are not finite", "finite values", "ask another donor")
        header = self._header
        return UnitState(
            header.unit,
            header.head,
            header.index,
            header.total_tokens,
            torch.from_numpy(self._anchor_N),
            torch.from_numpy(self._momentum_N),
        )
