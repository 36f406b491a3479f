"""The dense codecs as a compiled library (`blocks.c`), for several chunks in one call: the same bytes as dense.py, in one pass.

dense.py is the reference. The library handles only the plain case, and reports any other one. The caller then works as if there
were no library, so every refusal and its message are in one place.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from averaging.codecs.codec import Codec, FloatArray
from averaging.codecs.dense import BlockCodec, DenseCodec

_FOLDER: Final = Path(__file__).parent
_LIBRARY: Final = _FOLDER / "blocks.so"
SPARSE_BLOCK_ELEMENTS: Final = 4096

Encoded = Sequence[bytes | memoryview]
IntArray = npt.NDArray[np.int64]
DoubleArray = npt.NDArray[np.float64]


class CompiledBlocks:
    """The functions of one library. Thread-safe; they run without Python's lock.

    Raises:
        OSError: the library cannot be loaded, or was built from another source.
    """

    def __init__(self, path: Path, source: Path = _FOLDER / "blocks.c") -> None:
        library = ctypes.CDLL(str(path))
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        try:
            source_hash = library.potluck_source
            self._encode, self._decode = library.potluck_encode, library.potluck_decode
            self._add, self._add_wide, self._step = library.potluck_add, library.potluck_add_wide, library.potluck_step
            self._largest, self._gram = library.potluck_largest, library.potluck_gram
        except AttributeError as error:
            raise OSError(str(error)) from error
        source_hash.restype = ctypes.c_char_p
        if source_hash().decode() != hashlib.sha256(source.read_bytes()).hexdigest():
            raise OSError(f"{path} was built from another source than {source}")
        self._encode.argtypes = [ctypes.c_int, pointer, pointer, count, count, pointer]
        self._decode.argtypes = [ctypes.c_int, pointer, count, count, pointer]
        self._add.argtypes = [ctypes.c_int, pointer, count, count, ctypes.c_float, ctypes.c_float, pointer]
        self._add_wide.argtypes = [ctypes.c_int, pointer, count, count, ctypes.c_double, ctypes.c_float, pointer]
        self._step.argtypes = [ctypes.c_int, pointer, count, count, ctypes.c_float, pointer, pointer]
        self._largest.argtypes = [pointer, count, count, pointer]
        self._gram.argtypes = [pointer, count, count, pointer]

    def encode(
        self, codec: Codec, values_n: torch.Tensor, minus_n: torch.Tensor | None, chunk_elements: int, room: memoryview
    ) -> bool:
        """Write the chunks of `values_n - minus_n`, or of `values_n`, into `room`, one after another. Both are (n,) float32, whole
        chunks only. Returns False for a case that it does not handle; `room` is then undefined.
        """
        kind, num_chunks = _kind(codec, chunk_elements), len(values_n) // chunk_elements
        vectors = (values_n,) if minus_n is None else (values_n, minus_n)
        is_plain = all(_is_plain(each_n) and len(each_n) == num_chunks * chunk_elements for each_n in vectors)
        size_bytes = num_chunks * codec.encoded_bytes(chunk_elements)
        if kind is None or not is_plain or room.readonly or room.nbytes != size_bytes:
            return False
        minus = None if minus_n is None else minus_n.data_ptr()
        written = np.frombuffer(room, dtype=np.uint8).ctypes.data
        return not self._encode(kind, values_n.data_ptr(), minus, num_chunks, chunk_elements, written)

    def decode(self, codec: Codec, chunks: Encoded, chunk_elements: int, values_n: torch.Tensor) -> bool:
        """Write the values of whole chunks into `values_n`, (n,) float32. Returns False for a case that it does not handle, or if
        the bytes are not plainly an encoder's; `values_n` is then undefined.
        """
        kind = self._kind_of(codec, chunks, chunk_elements, values_n)
        if kind is None:
            return False
        at = _addresses(chunks)
        return not self._decode(kind, at.ctypes.data, len(chunks), chunk_elements, values_n.data_ptr())

    def add(
        self, codec: Codec, chunks: Encoded, chunk_elements: int, weight: float, most: float, sum_n: torch.Tensor
    ) -> bool:
        """Add `weight` times the values of whole chunks to `sum_n`, (n,) float32 or float64. Returns False as `decode`, or if a
        value may exceed `most` in size; `sum_n` is then undefined.
        """
        kind = self._kind_of(codec, chunks, chunk_elements, sum_n, sum_n.dtype)
        if kind is None or sum_n.dtype not in (torch.float32, torch.float64):
            return False
        at, add = _addresses(chunks), self._add if sum_n.dtype == torch.float32 else self._add_wide
        return not add(kind, at.ctypes.data, len(chunks), chunk_elements, weight, most, sum_n.data_ptr())

    def step(
        self,
        codec: Codec,
        chunks: Encoded,
        chunk_elements: int,
        rate: float,
        before_n: torch.Tensor,
        after_n: torch.Tensor,
    ) -> bool:
        """Write `before_n` - `rate` times the values of whole chunks into `after_n`; both (n,) float32. Returns False as `decode`."""
        kind = self._kind_of(codec, chunks, chunk_elements, after_n)
        if kind is None or not _is_plain(before_n) or len(before_n) != len(after_n):
            return False
        at, places = _addresses(chunks), (before_n.data_ptr(), after_n.data_ptr())
        return not self._step(kind, at.ctypes.data, len(chunks), chunk_elements, rate, *places)

    def largest(self, values: FloatArray, num_places: int) -> IntArray | None:
        """(blocks x num_places,) places of the largest of (blocks x 4096,) values in their blocks, as sparse.py defines them. None
        if a value is not finite.
        """
        values = np.ascontiguousarray(values, dtype=np.float32)
        num_blocks = len(values) // SPARSE_BLOCK_ELEMENTS
        places = np.empty(num_blocks * num_places, dtype=np.int64)
        if self._largest(values.ctypes.data, num_blocks, num_places, places.ctypes.data):
            return None
        return places

    def gram(self, rows_mn: torch.Tensor) -> DoubleArray | None:
        """(m, m, 8) float64 sums of the products of each pair of (m, n) float32 rows, in eight lanes (gram.py), zeros for pairs (i, j)
        with j > i. None for a case that it does not handle.
        """
        num_rows = len(rows_mn)
        if not _is_plain(rows_mn.reshape(-1)) or not rows_mn.is_contiguous():
            return None
        lanes = np.zeros((num_rows, num_rows, 8))
        return None if self._gram(rows_mn.data_ptr(), num_rows, rows_mn.shape[1], lanes.ctypes.data) else lanes

    def _kind_of(
        self,
        codec: Codec,
        chunks: Encoded,
        chunk_elements: int,
        values_n: torch.Tensor,
        dtype: torch.dtype = torch.float32,
    ) -> int | None:
        size_bytes = codec.encoded_bytes(chunk_elements)
        fits = len(values_n) == len(chunks) * chunk_elements and all(len(chunk) == size_bytes for chunk in chunks)
        return _kind(codec, chunk_elements) if fits and _is_plain(values_n, dtype) else None


def _kind(codec: Codec, chunk_elements: int) -> int | None:
    """The number of a codec in `blocks.c`; None if the library does not handle these chunks. Of block codecs it handles only whole
    blocks of the codec's own length.
    """
    if not isinstance(codec, BlockCodec):
        return codec.compiled_as if isinstance(codec, DenseCodec) else None
    is_own = codec.facts.block == type(codec).facts.block
    return codec.compiled_as if is_own and chunk_elements % codec.facts.block == 0 else None


def _is_plain(values_n: torch.Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether C can read it as an array of that type: contiguous and aligned."""
    is_vector = values_n.dtype == dtype and values_n.dim() == 1 and values_n.device.type == "cpu"
    is_there = is_vector and values_n.is_contiguous() and not values_n.is_neg()
    return is_there and values_n.data_ptr() % dtype.itemsize == 0


def _addresses(chunks: Encoded) -> npt.NDArray[np.uint64]:
    views = (np.frombuffer(chunk, dtype=np.uint8) for chunk in chunks)
    return np.fromiter((view.__array_interface__["data"][0] for view in views), dtype=np.uint64, count=len(chunks))


def load(path: Path = _LIBRARY) -> CompiledBlocks | None:
    """The library that the installation built; None if there is none for this source (`problem` gives the reason)."""
    try:
        return CompiledBlocks(path)
    except OSError:
        return None


def problem(path: Path = _LIBRARY) -> str:
    """Why the codecs are not compiled here, in one line; empty if they are."""
    if not path.exists():
        return f"this installation has no {path.name}"
    try:
        CompiledBlocks(path)
    except OSError as error:
        return str(error).partition("\n")[0]
    return ""


BLOCKS: Final = load()
