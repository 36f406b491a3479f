"""A stage's snapshot as bytes, for a neighbour to keep and a spare to continue from: safetensors, theta first, then the moments.

The bytes lie in memory that a stage's processes share with the daemon. Each process writes and reads its own rows there, at the places
that a `SnapshotLayout` names. Snapshots of other peers are read in short pieces: a long copy holds the interpreter's lock, and so
the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from peer.pipeline.stage.snapshot_bytes import SnapshotBytes
from peer.pipeline.stage.stage_trainer import StageSnapshot
from protocol.errors import RemoteProtocolError
from protocol.tensors.tensor_schema import TensorSchema

Written = Callable[[], Awaitable[SnapshotBytes]]
"""Waits until a snapshot that was taken is written, and returns its bytes. Raises PotluckError if it is lost."""

_THETA: Final = "theta"
_MOMENT: Final = "moment."
_HEAD_BYTES: Final = 65_536
_TENSOR_HEAD_BYTES: Final = 512
_WIDEST_BYTES: Final = 8
_VECTORS: Final = 3
"""Parameters and at most two moments."""

_LENGTH_BYTES: Final = 8
"""Of the number before the JSON of safetensors, little-endian."""

_MOST_DIMS: Final = 8
_FINITE_PIECE: Final = 1 << 22
"""Values that are checked at a time."""

_PIECE_BYTES: Final = 1 << 22
"""Of a snapshot that are copied at a time."""

_DTYPES: Final = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""By safetensors' names, in the order in which it writes them."""

_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


def most_snapshot_bytes(schema: TensorSchema, value_bytes: int = _WIDEST_BYTES) -> int:
    """Upper bound on the size of a snapshot of this stage, with any optimizer, for values of at most so many bytes."""
    heads = _HEAD_BYTES + _VECTORS * len(schema.tensors) * _TENSOR_HEAD_BYTES
    return heads + _VECTORS * schema.num_elements * value_bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes [begin, stop) of a snapshot: a tensor of this type and shape."""

    begin: int
    stop: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def of(self, data: torch.Tensor) -> torch.Tensor:
        """The tensor itself, as a view of the snapshot's bytes, (num_bytes,) uint8."""
        return data[self.begin : self.stop].view(self.dtype).view(self.shape)


@dataclass(frozen=True, slots=True)
class SnapshotLayout:
    """The place of each tensor of a snapshot.

    Attributes:
        head: the first bytes, by which a reader finds the places.
        places: of the parameters, (N,), then of each moment.
        num_bytes: of the whole snapshot.
    """

    head: bytes
    places: tuple[Place, ...]
    num_bytes: int

    def views(self, data: torch.Tensor) -> StageSnapshot:
        """The tensors in memory for a snapshot, at least (num_bytes,) uint8. Writes to them are writes to it."""
        theta_N, *moments = (place.of(data) for place in self.places)
        return StageSnapshot(theta_N, tuple(moments))


Form = tuple[torch.dtype, tuple[int, ...]]
"""Type and shape of a tensor."""


def layout_of(forms: Sequence[Form]) -> SnapshotLayout:
    """The layout of a snapshot with these parameters and moments: the bytes that safetensors' `save` makes.

    Args:
        forms: of the parameters, (N,), then of each moment, whole.
    """
    named = [(_THETA if not number else f"{_MOMENT}{number - 1}", form) for number, form in enumerate(forms)]
    order = list(_NAMES)
    said: dict[str, object] = {}
    begins: dict[str, int] = {}
    end = 0
    for name, (dtype, shape) in sorted(named, key=lambda one: (order.index(one[1][0]), one[0])):
        begins[name], begin, end = end, end, end + prod(shape) * dtype.itemsize
        said[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(said, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // _LENGTH_BYTES) * _LENGTH_BYTES)
    head = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    places = [
        Place(len(head) + begins[name], len(head) + begins[name] + prod(shape) * dtype.itemsize, dtype, shape)
        for name, (dtype, shape) in named
    ]
    return SnapshotLayout(head, tuple(places), len(head) + end)


class _Entry(BaseModel):
    """The entry of a tensor in the head of safetensors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    dtype: Literal["F64", "F32", "BF16", "F16"]
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 48)]], Field(max_length=_MOST_DIMS)]
    data_offsets: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 60)]], Field(min_length=2, max_length=2)]


_ENTRIES: Final[TypeAdapter[dict[str, _Entry]]] = TypeAdapter(dict[str, _Entry])


def read_layout(data: torch.Tensor | SnapshotBytes, schema: TensorSchema) -> SnapshotLayout:
    """The layout of a snapshot of this stage, (num_bytes,) uint8 or its bytes. No value is read or copied.

    Raises:
        RemoteProtocolError: not a snapshot, or a snapshot of another stage.
    """
    first = data[: most_snapshot_bytes(schema, 0)]
    first = first.numpy().tobytes() if isinstance(first, torch.Tensor) else bytes(first)
    stop = _LENGTH_BYTES + int.from_bytes(first[:_LENGTH_BYTES], "little")
    if len(first) < _LENGTH_BYTES or stop > len(first):
        raise RemoteProtocolError(f"{len(data)} bytes that are no snapshot", "safetensors")
    head = first[:stop]
    try:
        entries = _ENTRIES.validate_json(head[_LENGTH_BYTES:])
    except ValidationError as error:
        found = f"the head of a snapshot that cannot be read ({error.error_count()} entries)"
        raise RemoteProtocolError(found, "that of safetensors, with floats") from error
    names = [_THETA, *(f"{_MOMENT}{number}" for number in range(len(entries) - 1))]
    if set(entries) != set(names):
        raise _strange_names(len(entries))
    places = tuple(_place(name, entries[name], stop, len(data)) for name in names)
    if places[0].shape != (schema.num_elements,):
        raise _another_shape(places[0].shape, schema)
    _require_one_after_another(places, stop, len(data))
    return SnapshotLayout(head, places, len(data))


def _place(name: str, entry: _Entry, head_bytes: int, num_bytes: int) -> Place:
    dtype, shape = _DTYPES[entry.dtype], tuple(entry.shape)
    begin, stop = (head_bytes + offset for offset in entry.data_offsets)
    if stop - begin != prod(shape) * dtype.itemsize or stop > num_bytes or begin % dtype.itemsize:
        raise RemoteProtocolError(f"{name} of a snapshot at bytes {begin} to {stop}", f"the bytes of {shape} within it")
    return Place(begin, stop, dtype, shape)


def _require_one_after_another(places: Sequence[Place], begin: int, num_bytes: int) -> None:
    """Tensors that share bytes would make a reader read them many times."""
    in_order = sorted((place.begin, place.stop) for place in places)
    stops = [begin, *(stop for _, stop in in_order)]
    begins = [*(begin for begin, _ in in_order), num_bytes]
    for end, next_begin in zip(stops, begins, strict=True):
        if end != next_begin:
            raise RemoteProtocolError(f"byte {next_begin} of a snapshot after byte {end}", "tensors without gaps")


def is_finite(values: torch.Tensor) -> bool:
    """Whether all values are finite, with little memory beside them."""
    rows = values if values.dim() else values.view(1)
    each = max(1, _FINITE_PIECE // max(1, rows[:1].numel()))
    return all(bool(torch.isfinite(part).all()) for part in torch.split(rows, each))


def require_finite(is_so: bool) -> None:
    """Raises RemoteProtocolError if it is not."""
    if not is_so:
        raise RemoteProtocolError("values of a snapshot that are not finite", "finite floats")


def check_snapshot(data: SnapshotBytes, schema: TensorSchema) -> None:
    """Check a snapshot of another peer, without memory for it. `StageTrainer.own_rows` checks whether the moments fit the optimizer.

    Raises:
        RemoteProtocolError: not a snapshot, a snapshot of another stage, or values that are not finite.
    """
    for place in read_layout(data, schema).places:
        require_finite(all(is_finite(values) for values in _pieces(data, place)))


def theta_of(data: SnapshotBytes, schema: TensorSchema) -> torch.Tensor:
    """The parameters in a snapshot, (N,), a copy on the CPU in their own type.

    Raises:
        RemoteProtocolError: not a snapshot, a snapshot of another stage, or parameters that are not finite.
    """
    place, num_copied = read_layout(data, schema).places[0], 0
    theta_N = torch.empty(place.shape, dtype=place.dtype)
    for values in _pieces(data, place):
        require_finite(is_finite(values))
        theta_N[num_copied : num_copied + len(values)] = values
        num_copied += len(values)
    return theta_N


def _pieces(data: SnapshotBytes, place: Place) -> Iterator[torch.Tensor]:
    """A tensor's values, one after another, flat; copies where torch takes no view, as of `bytes`."""
    view = memoryview(data)
    for begin in range(place.begin, place.stop, _PIECE_BYTES):
        piece = view[begin : min(begin + _PIECE_BYTES, place.stop)]
        yield torch.frombuffer(bytearray(piece) if piece.readonly else piece, dtype=place.dtype)


def _strange_names(num_tensors: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"a snapshot with {num_tensors} tensors of other names", "theta, moment.0 and so on, each once"
    )


def _another_shape(shape: Sequence[int], schema: TensorSchema) -> RemoteProtocolError:
    return RemoteProtocolError(f"a snapshot of shape {tuple(shape)}", f"{schema.num_elements} values")
