"""The stored and the pending residual of a unit on disk, each in a few segments.

Segments are replaced one at a time, so that there is never a third copy on disk. A file is feedback/<"stored" or
"pending">/<segment>: head, a mark and a norm of every chunk, values, SHA-256 over all of it. The head of a stored residual names
its commit, the head of a pending one its contribution. Marks are the chunks' origins, or the base of a pending residual. A torn or
damaged file counts as missing, and its chunks have no residual.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Final

import numpy as np
import torch

from averaging.arithmetic.error_feedback import NO_ORIGIN, Pending, Residual
from averaging.network.seams.interfaces import Offload, Storage
from protocol.errors import StorageError
from protocol.ids import HASH_BYTES, CommitId, Root
from protocol.tensors.tensor_schema import ChunkGrid

NUM_SEGMENTS: Final = 16
"""Each segment takes an fsync, and room for a second copy while it is replaced."""

STORED: Final = "stored"
PENDING: Final = "pending"
FOLDER: Final = "feedback/"
_MAGIC: Final = b"PLR1"
_HEAD: Final = struct.Struct("<4s32sII")
"""Magic, commit or root, first chunk, chunks."""

_CHUNK: Final = struct.Struct("<32sd")
_SEGMENT_COST_S: Final = 0.001
"""Virtual time to make or check one segment."""


@dataclass(frozen=True)
class Segment:
    """Contents of one file: `values_n` float32, marks and norms of its chunks, from `first_chunk` on."""

    named: bytes
    first_chunk: int
    marks: tuple[Root, ...]
    norms: tuple[float, ...]
    values_n: torch.Tensor


@dataclass(frozen=True)
class FoundFeedback:
    """The feedback on disk.

    Attributes:
        standing: for each chunk, the commit of its residual; None if it has none.
        problems: one sentence for each damaged file.
    """

    residual: Residual
    standing: tuple[CommitId | None, ...]
    pending: Pending | None
    problems: tuple[str, ...]


def segments_of(grid: ChunkGrid) -> Sequence[range]:
    """The chunks of each segment."""
    per_segment = -(-grid.num_chunks // NUM_SEGMENTS)
    starts = range(0, grid.num_chunks, per_segment)
    return [range(start, min(start + per_segment, grid.num_chunks)) for start in starts]


def bound_bytes(grid: ChunkGrid) -> int:
    """Most bytes of both residuals on disk, with one segment that is being written."""
    sizes = [_file_bytes(grid, chunks) for chunks in segments_of(grid)]
    return 2 * sum(sizes) + max(sizes)


def _file_bytes(grid: ChunkGrid, chunks: range) -> int:
    start, stop = grid.span(chunks.start, chunks.stop)
    return _HEAD.size + _CHUNK.size * len(chunks) + 4 * (stop - start) + HASH_BYTES


class ResidualFiles:
    """The files of one unit in a Storage."""

    def __init__(self, storage: Storage, grid: ChunkGrid, offload: Offload) -> None:
        self._storage = storage
        self._grid = grid
        self._offload = offload
        self.segments = segments_of(grid)

    async def write_stored(self, number: int, commit: CommitId, residual: Residual) -> None:
        """Replace one segment of the residual of this commit.

        Raises:
            StorageError: the disk refused; the old segment is still there.
        """
        parts = partial(self._parts, number, commit, residual.origins, residual.norms, residual.values_N)
        await self._write(STORED, number, await self._offload.run(parts, cost_s=_SEGMENT_COST_S))

    async def write_pending(self, number: int, pending: Pending) -> None:
        """Replace one segment of the pending residual. Raises as `write_stored`."""
        root = pending.roots[self.segments[number].start]
        parts = partial(self._parts, number, root, pending.built_on, pending.norms, pending.values_N)
        await self._write(PENDING, number, await self._offload.run(parts, cost_s=_SEGMENT_COST_S))

    async def _write(self, kind: str, number: int, parts: Sequence[bytes | memoryview]) -> None:
        await self._storage.write_atomic(_name(kind, number), parts)

    def _parts(
        self, number: int, named: bytes, marks: Sequence[Root], norms: Sequence[float], values_N: torch.Tensor
    ) -> list[bytes | memoryview]:
        chunks = self.segments[number]
        begin, stop = self._grid.span(chunks.start, chunks.stop)
        head = _HEAD.pack(_MAGIC, named, chunks.start, len(chunks))
        rows = b"".join(_CHUNK.pack(marks[chunk], norms[chunk]) for chunk in chunks)
        values = values_N[begin:stop].numpy().astype("<f4", copy=False).tobytes()
        digest = sha256(head + rows)
        digest.update(values)
        return [head, rows, values, digest.digest()]

    async def load(self) -> FoundFeedback:
        """Load all undamaged files."""
        grid = self._grid
        values_N = torch.zeros(grid.num_elements, dtype=torch.float32)
        origins, norms = [NO_ORIGIN] * grid.num_chunks, [0.0] * grid.num_chunks
        standing: list[CommitId | None] = [None] * grid.num_chunks
        problems = list[str]()
        for number, chunks in enumerate(self.segments):
            found = await self._read(STORED, number, problems)
            if found is not None:
                begin, stop = grid.span(chunks.start, chunks.stop)
                values_N[begin:stop] = found.values_n
                cut = slice(chunks.start, chunks.stop)
                origins[cut], norms[cut] = found.marks, found.norms
                standing[cut] = [CommitId(found.named)] * len(chunks)
        pending = await self._load_pending(problems)
        return FoundFeedback(
            Residual(values_N, tuple(origins), tuple(norms)), tuple(standing), pending, tuple(problems)
        )

    async def _load_pending(self, problems: list[str]) -> Pending | None:
        grid = self._grid
        found = [await self._read(PENDING, number, problems) for number in range(len(self.segments))]
        if not any(found):
            return None
        values_N = torch.zeros(grid.num_elements, dtype=torch.float32)
        roots, marks = [NO_ORIGIN] * grid.num_chunks, [NO_ORIGIN] * grid.num_chunks
        norms = [0.0] * grid.num_chunks
        for chunks, segment in zip(self.segments, found, strict=True):
            if segment is not None:
                begin, stop = grid.span(chunks.start, chunks.stop)
                values_N[begin:stop] = segment.values_n
                cut = slice(chunks.start, chunks.stop)
                roots[cut] = [Root(segment.named)] * len(chunks)
                marks[cut], norms[cut] = segment.marks, segment.norms
        return Pending(values_N, tuple(roots), tuple(marks), tuple(norms))

    async def _read(self, kind: str, number: int, problems: list[str]) -> Segment | None:
        name = _name(kind, number)
        try:
            data = await self._storage.read(name)
            if data is None:
                return None
            blob = data
            return await self._offload.run(lambda: self._parsed(number, blob), cost_s=_SEGMENT_COST_S)
        except StorageError as error:
            problems.append(f"{name}: {error.found}")
            return None

    def _parsed(self, number: int, data: bytes) -> Segment:
        chunks, expected = self.segments[number], _file_bytes(self._grid, self.segments[number])
        if len(data) != expected:
            raise StorageError(f"{len(data)} bytes", f"{expected} bytes")
        magic, named, first_chunk, num_chunks = _HEAD.unpack_from(data)
        if sha256(data[:-HASH_BYTES]).digest() != data[-HASH_BYTES:]:
            raise StorageError("bytes with another hash", "those that were written")
        if (magic, first_chunk, num_chunks) != (_MAGIC, chunks.start, len(chunks)):
            raise StorageError("another segment, or one of another version", f"chunks from {chunks.start} on")
        rows = [_CHUNK.unpack_from(data, _HEAD.size + _CHUNK.size * place) for place in range(num_chunks)]
        begin = _HEAD.size + _CHUNK.size * num_chunks
        values = np.frombuffer(data, dtype="<f4", offset=begin, count=(expected - begin - HASH_BYTES) // 4)
        norms = tuple(norm for _, norm in rows)
        if not (np.isfinite(values).all() and np.isfinite(norms).all()):
            raise StorageError("values that are not finite", "finite values")
        marks = tuple(Root(mark) for mark, _ in rows)
        return Segment(named, first_chunk, marks, norms, torch.from_numpy(values.astype(np.float32)))


def _name(kind: str, number: int) -> str:
    return f"{FOLDER}{kind}/{number:02d}"
