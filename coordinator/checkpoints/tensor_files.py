"""Files of float32 tensors in the safetensors format (github.com/huggingface/safetensors), written and read a part at a time.

The library writes and reads whole tensors, and copies each of them. A host of a large model has no memory for that. The bytes are
the library's: the length of the header, the header as JSON, padded to a multiple of 8, then the tensors in the order of their names.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from protocol.errors import LocalProtocolError, StorageError

if TYPE_CHECKING:
    from protocol.tensors.tensor_schema import TensorSchema, TensorSpec

_VALUE_BYTES: Final = 4
_LENGTH: Final = struct.Struct("<Q")
_ALIGNMENT: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the safetensors format for its own header."""

_AT_ONCE: Final = 1 << 20
"""Values that are in memory at a time while a vector is read or written."""


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A float32 tensor to be written: its shape, and a function that returns its bytes in parts, little-endian."""

    shape: tuple[int, ...]
    parts: Callable[[], Iterable[bytes | memoryview]]

    @property
    def num_bytes(self) -> int:
        """Of all parts together."""
        return _VALUE_BYTES * prod(self.shape)


def source_of(values: torch.Tensor, shape: tuple[int, ...] | None = None) -> TensorSource:
    """A float32 tensor on the CPU as a source. Nothing is copied if it is contiguous. `shape`: if it is another than its own.

    Raises:
        LocalProtocolError: a tensor of other numbers.
    """
    if values.dtype != torch.float32:
        raise LocalProtocolError(f"a tensor of {values.dtype} to be written", "float32")
    flat = values.detach().contiguous().reshape(-1).numpy().astype("<f4", copy=False)
    begins = range(0, len(flat), _AT_ONCE)
    return TensorSource(
        tuple(values.shape) if shape is None else shape,
        lambda: (flat[begin : begin + _AT_ONCE].data.cast("B") for begin in begins),
    )


def write_tensors(path: Path, tensors: Mapping[str, TensorSource], metadata: Mapping[str, str]) -> None:
    """Write a new file of float32 tensors. Blocks, and syncs nothing.

    Raises:
        OSError: it cannot be written.
        LocalProtocolError: a source has another length than its shape says.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    ends, end = dict[str, int](), 0
    for name in sorted(tensors):
        shape = tensors[name].shape
        begin, end = end, end + tensors[name].num_bytes
        ends[name] = end
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // _ALIGNMENT) * _ALIGNMENT)
    with path.open("wb") as file:
        file.write(_LENGTH.pack(len(text)) + text)
        num_bytes = 0
        for name, expected in ends.items():
            for part in tensors[name].parts():
                file.write(part)
                num_bytes += len(part)
            if num_bytes != expected:
                raise LocalProtocolError(f"tensor {name} that ends at byte {num_bytes}", f"{expected}")


class StoredVector:
    """Reads parts of a flat vector from a safetensors file of float32 tensors. Blocks.

    Raises:
        StorageError: the file is no such file, or lacks a tensor of the schema.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, schema: TensorSchema) -> None:
        self._path = path
        self.schema = schema
        with path.open("rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size).ljust(_LENGTH.size, b"\xff"))
            if length > _MAX_HEADER_BYTES:
                raise self._damaged("a header that is too long")
            try:
                header = json.loads(file.read(length))
                found = {name: entry for name, entry in header.items() if name != "__metadata__"}
                kinds = {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in found.items()}
                offsets = {name: entry["data_offsets"] for name, entry in found.items()}
                sizes = {name: int(end) - int(begin) for name, (begin, end) in offsets.items()}
                self._begins = {name: _LENGTH.size + length + int(begin) for name, (begin, _) in offsets.items()}
                file_bytes = os.fstat(file.fileno()).st_size
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise self._damaged("a header that cannot be read") from error
        for spec in schema.tensors:
            num_bytes = _VALUE_BYTES * spec.num_elements
            if kinds.get(spec.name) != ("F32", spec.shape) or sizes[spec.name] != num_bytes:
                raise self._damaged(f"no {spec.name} as float32 of shape {spec.shape}")
            if not 0 <= self._begins[spec.name] <= file_bytes - num_bytes:
                raise self._damaged("an early end")

    def _damaged(self, what: str) -> StorageError:
        return StorageError(f"{self._path} has {what}", "a checkpoint's weights", "see: potluck checkpoint verify")

    def read(self, start: int, stop: int) -> bytes:
        """The values from `start` to `stop` of the flat vector, as little-endian float32."""
        return b"".join(self.parts(start, stop))

    def parts(self, start: int, stop: int) -> Iterator[bytes]:
        """The same, a part at a time."""
        with self._path.open("rb") as file:
            for spec, first, last in self.schema.pieces(start, stop):
                for begin in range(first, last, _AT_ONCE):
                    num_bytes = _VALUE_BYTES * (min(begin + _AT_ONCE, last) - begin)
                    part = os.pread(file.fileno(), num_bytes, self._begins[spec.name] + _VALUE_BYTES * begin)
                    if len(part) != num_bytes:
                        raise self._damaged("an early end")
                    yield part

    def vector(self) -> torch.Tensor:
        """(N,) float32: all values. Long zeros take no memory."""
        return self._loaded(0, self.schema.num_elements)

    def tensor(self, spec: TensorSpec) -> torch.Tensor:
        """The values of one tensor of the schema, in its shape."""
        begin = self.schema.offset(spec.name)
        return self._loaded(begin, begin + spec.num_elements).view(spec.shape)

    def source(self, spec: TensorSpec) -> TensorSource:
        """One tensor of the schema, to be written to another file. It is read while it is written."""
        begin = self.schema.offset(spec.name)
        return TensorSource(spec.shape, lambda: self.parts(begin, begin + spec.num_elements))

    def _loaded(self, start: int, stop: int) -> torch.Tensor:
        values_N, begin = np.zeros(stop - start, dtype=np.float32), 0
        for part in self.parts(start, stop):
            values = np.frombuffer(part, dtype="<f4")
            if values.view("<u4").any():  # the bytes, because a negative zero is a value of its own
                values_N[begin : begin + len(values)] = values
            begin += len(values)
        return torch.from_numpy(values_N)
