"""Encodes or decodes several chunks at once, because one call of a codec costs about as much as a whole short chunk.

The bytes equal those of encoding chunk by chunk. A dense codec writes values one after another, or all scales and then all codes.
So it can write a run of whole chunks as one long vector; only the scales must then be moved, which is cheap. `Codec.head_bytes`
tells which codecs can. A `SparseCodec` takes several chunks in its own way. Whole chunks of a dense codec go through the compiled
library if it is available.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from averaging.arithmetic.vectors import new_bytes
from averaging.codecs import Codec
from averaging.codecs.compiled import BLOCKS
from averaging.codecs.dense import BlockCodec
from averaging.codecs.sparse import SparseCodec
from protocol.errors import RemoteProtocolError
from protocol.tensors.tensor_schema import ChunkGrid

RUN_ELEMENTS: Final = 1 << 18
"""Values per call: 1 MiB as float32, which fits a core's cache."""


def _as_vector(codec: Codec, chunk_elements: int) -> tuple[Codec, int] | None:
    """The codec that writes a run of whole chunks as one long vector, and how many bytes of each chunk come first; None if there is
    none.
    """
    head = codec.head_bytes(chunk_elements)
    if head is not None:
        return codec, head
    # A short chunk is one block of its own. With half a byte left over, the next chunk cannot follow directly.
    if not isinstance(codec, BlockCodec) or chunk_elements >= codec.block_elements or chunk_elements % 2:
        return None
    return _as_vector(_in_short_blocks(type(codec), chunk_elements), chunk_elements)


@functools.lru_cache(maxsize=64)
def _in_short_blocks(kind: type[BlockCodec], block_elements: int) -> BlockCodec:
    return kind(block_elements)


def run_chunks(chunk_elements: int) -> int:
    """Number of chunks per call."""
    return max(1, RUN_ELEMENTS // chunk_elements)


def runs_in(first_chunk: int, stop_chunk: int, chunk_elements: int) -> list[range]:
    """Split a range of chunks into runs, each for one call."""
    step = run_chunks(chunk_elements)
    return [range(first, min(first + step, stop_chunk)) for first in range(first_chunk, stop_chunk, step)]


def encode_run(
    codec: Codec,
    values_n: torch.Tensor,
    chunk_elements: int,
    room: memoryview | None = None,
    minus_n: torch.Tensor | None = None,
) -> list[memoryview]:
    """Encode the chunks of a (n,) float32 vector, one after another; the last may be shorter. Raises as `Codec.encode`.

    Args:
        room: memory for the encodings, `span_bytes` long; None to allocate it.
        minus_n: (n,) float32, subtracted first.
    """
    num_elements = values_n.numel()
    num_whole, rest = divmod(num_elements, chunk_elements)
    size_bytes, whole_elements = codec.encoded_bytes(chunk_elements), num_whole * chunk_elements
    num_bytes = num_whole * size_bytes + (codec.encoded_bytes(rest) if rest else 0)
    written = np.empty(num_bytes, dtype=np.uint8).data if room is None else room
    whole_n, whole_room = values_n[:whole_elements], written[: num_whole * size_bytes]
    whole_minus_n = None if minus_n is None else minus_n[:whole_elements]
    if BLOCKS is None or not BLOCKS.encode(codec, whole_n, whole_minus_n, chunk_elements, whole_room):
        rest, whole_elements = num_elements, 0
    if rest:
        rest_n = values_n[whole_elements:]
        _write_run(
            codec,
            rest_n if minus_n is None else torch.sub(rest_n, minus_n[whole_elements:]),
            chunk_elements,
            np.frombuffer(written, dtype=np.uint8)[whole_elements // chunk_elements * size_bytes :],
        )
    view = written.toreadonly()
    return [view[begin : begin + size_bytes] for begin in range(0, num_bytes, size_bytes)]


def _write_run(codec: Codec, values_n: torch.Tensor, chunk_elements: int, written: npt.NDArray[np.uint8]) -> None:
    """As `encode_run`, without the compiled library."""
    num_whole, size_bytes = values_n.numel() // chunk_elements, codec.encoded_bytes(chunk_elements)
    vector = _as_vector(codec, chunk_elements) if num_whole > 1 and not isinstance(codec, SparseCodec) else None
    begin = 0
    if vector is not None:
        long, head = vector
        begin = num_whole * size_bytes
        whole = np.frombuffer(long.encode(values_n[: num_whole * chunk_elements]), dtype=np.uint8)
        moved = written[:begin].reshape(num_whole, size_bytes)
        moved[:, :head] = whole[: num_whole * head].reshape(num_whole, head)
        moved[:, head:] = whole[num_whole * head :].reshape(num_whole, size_bytes - head)
        values_n = values_n[num_whole * chunk_elements :]
    for data in _encoded_one_by_one(codec, values_n, chunk_elements):
        written[begin : begin + len(data)] = np.frombuffer(data, dtype=np.uint8)
        begin += len(data)


def _encoded_one_by_one(codec: Codec, values_n: torch.Tensor, chunk_elements: int) -> list[bytes]:
    if isinstance(codec, SparseCodec):
        return codec.encode_chunks(values_n, chunk_elements)
    return [codec.encode(part_n) for part_n in torch.split(values_n, chunk_elements) if part_n.numel()]


def span_bytes(codec: Codec, grid: ChunkGrid, first_chunk: int, stop_chunk: int) -> range:
    """The byte range of these chunks in the encoding of the whole vector. Raises as `ChunkGrid.bounds`."""
    whole_bytes = codec.encoded_bytes(grid.chunk_elements)
    begin, stop = grid.bounds(stop_chunk - 1)
    return range(first_chunk * whole_bytes, (stop_chunk - 1) * whole_bytes + codec.encoded_bytes(stop - begin))


def decode_run(
    codec: Codec, chunks: Sequence[bytes | memoryview], chunk_elements: int, num_elements: int
) -> torch.Tensor:
    """Decode consecutive chunks into (num_elements,) float32; all but the last hold `chunk_elements`.

    Raises:
        RemoteProtocolError: the lengths do not fit these chunks, or as `Codec.decode`.
    """
    if isinstance(codec, SparseCodec):
        return codec.decode_chunks(chunks, chunk_elements, num_elements)
    num_whole, rest = divmod(num_elements, chunk_elements)
    if BLOCKS is not None and len(chunks) == num_whole + bool(rest):
        values_n = torch.empty(num_elements)
        if BLOCKS.decode(codec, chunks[:num_whole], chunk_elements, values_n[: num_elements - rest]):
            if rest:
                values_n[num_elements - rest :] = codec.decode(chunks[num_whole], rest)
            return values_n
    vector = _as_vector(codec, chunk_elements) if num_whole > 1 else None
    if vector is None:
        return _one_by_one(codec, chunks, chunk_elements, num_elements)
    long, head = vector
    size_bytes = codec.encoded_bytes(chunk_elements)
    if len(chunks) < num_whole or any(len(chunk) != size_bytes for chunk in chunks[:num_whole]):
        raise RemoteProtocolError(f"{codec.name} chunks of other lengths", f"{size_bytes} bytes each")
    values_n = long.decode(_scales_first(chunks[:num_whole], head, size_bytes), num_whole * chunk_elements)
    if not rest:
        return values_n
    return torch.cat([values_n, _one_by_one(codec, chunks[num_whole:], chunk_elements, rest)])


def _scales_first(chunks: Sequence[bytes | memoryview], head: int, size_bytes: int) -> memoryview:
    """The chunks as one long vector's encoding: the first `head` bytes of each, then the rest of each."""
    if not head:
        return memoryview(b"".join(chunks))
    joined = memoryview(bytearray(len(chunks) * size_bytes))
    rest, begin = size_bytes - head, len(chunks) * head
    for number, chunk in enumerate(chunks):
        view = memoryview(chunk)
        joined[number * head : (number + 1) * head] = view[:head]
        joined[begin + number * rest : begin + (number + 1) * rest] = view[head:]
    return joined


def _one_by_one(
    codec: Codec, chunks: Sequence[bytes | memoryview], chunk_elements: int, num_elements: int
) -> torch.Tensor:
    if len(chunks) != -(-num_elements // chunk_elements):
        raise RemoteProtocolError(f"{len(chunks)} chunks", f"those of {num_elements} values")
    sizes = (min(chunk_elements, num_elements - begin) for begin in range(0, num_elements, chunk_elements))
    parts = [codec.decode(chunk, size) for chunk, size in zip(chunks, sizes, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def new_room(codec: Codec, grid: ChunkGrid) -> memoryview:
    """Writable memory for the encodings of all chunks, one after another. Raises MachineError if there is not enough memory."""
    return new_bytes(len(span_bytes(codec, grid, 0, grid.num_chunks)))


def chunk_views(room: memoryview, codec: Codec, grid: ChunkGrid) -> tuple[memoryview, ...]:
    """Each chunk's part of that memory, read-only."""
    view, size_bytes = room.toreadonly(), codec.encoded_bytes(grid.chunk_elements)
    return tuple(view[begin : begin + size_bytes] for begin in range(0, len(view), size_bytes))
