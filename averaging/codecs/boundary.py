"""What crosses from stage to stage of a pipeline: activations one way, their gradients the other, as bytes that are checked.

Layout: a head of 92 bytes (magic, codec, direction, stage, shape, the micro-batch's whole identity, a hash of the payload), then the
payload. Rows are tokens. "int8" writes a row's absolute maximum / 127 as its scale, "int4" a group's / 7, in groups of 128 values of a
row; scales are bfloat16, rounded up, so that no code leaves its range. All of it is single IEEE operations and integer ones on bits:
the same bytes everywhere, and so the same numbers each time that work is done again from them.

"fp32" and "fp64" write values as they are; fp64 is for proofs. A message is refused whole, with what is wrong with it, before anything
is computed from it: sizes are checked before memory is taken.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch

from averaging.codecs.codec import SMALLEST_NORMAL
from protocol.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from protocol.pipeline.micro_batch import MICRO_BATCH_BYTES, MicroBatch, decode_micro_batch

Direction = Literal["forward", "backward"]
BoundaryCodec = Literal["fp32", "fp64", "bf16", "int8", "int4"]
CODECS: Final[tuple[BoundaryCodec, ...]] = ("fp32", "fp64", "bf16", "int8", "int4")
DIRECTIONS: Final[tuple[Direction, ...]] = ("forward", "backward")
GROUP_VALUES: Final = 128
"""Values with one scale in int4."""

MAX_PAYLOAD_BYTES: Final = 1 << 30
_MAGIC: Final = b"PLB1"
_HASH_BYTES: Final = 16
_HEAD: Final = struct.Struct(f"<4sBBHIII{MICRO_BATCH_BYTES}s{_HASH_BYTES}s")
HEAD_BYTES: Final = _HEAD.size
_LARGEST_CODE: Final = {"int8": 127.0, "int4": 7.0}
_LARGEST_SCALE: Final = np.uint16(0x7F7F)

U8Array = npt.NDArray[np.uint8]
U16Array = npt.NDArray[np.uint16]
F32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Boundary:
    """What a receiver expects between two stages: a message that differs in any of it is refused.

    Attributes:
        stage: that the values are for.
        batch: whose micro-batch.
    """

    codec: BoundaryCodec
    direction: Direction
    stage: int
    batch: MicroBatch
    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        if self.codec not in CODECS or self.direction not in DIRECTIONS:
            raise ConfigError(f"{self.direction} in {self.codec}", f"one of {DIRECTIONS} in one of {CODECS}")
        if not 0 <= self.stage < 1 << 16 or any(not 1 <= size < 1 << 32 for size in self.shape):
            raise LocalProtocolError(
                f"stage {self.stage}, shape {self.shape}", "numbers that fit and at least one value"
            )
        if self.payload_bytes > MAX_PAYLOAD_BYTES:
            raise ConfigError(
                f"a micro-batch of {self.payload_bytes} bytes", f"at most {MAX_PAYLOAD_BYTES}", "make it smaller"
            )

    @property
    def payload_bytes(self) -> int:
        """Exact length behind the head."""
        sequences, num_tokens, dim = self.shape
        return sequences * num_tokens * row_bytes(self.codec, dim)

    @property
    def message_bytes(self) -> int:
        """Exact length of the whole message."""
        return HEAD_BYTES + self.payload_bytes


def row_bytes(codec: BoundaryCodec, dim: int) -> int:
    """Of one token."""
    if codec == "int8":
        return dim + 2
    if codec == "int4":
        return -(-dim // 2) + 2 * -(-dim // GROUP_VALUES)
    return dim * {"fp32": 4, "fp64": 8, "bf16": 2}[codec]


def encode_boundary(values_BTD: torch.Tensor, boundary: Boundary) -> bytes:
    """The message; what `decode_boundary` makes of it is what both sides compute with.

    Raises:
        LocalProtocolError: values of another shape than said, or some that are not finite or too large for the codec.
    """
    if tuple(values_BTD.shape) != boundary.shape or not values_BTD.dtype.is_floating_point:
        raise LocalProtocolError(
            f"values of {tuple(values_BTD.shape)} in {values_BTD.dtype}", f"{boundary.shape} floats"
        )
    payload = _encoded(values_BTD.detach().cpu(), boundary.codec)
    head = _HEAD.pack(
        _MAGIC,
        CODECS.index(boundary.codec),
        DIRECTIONS.index(boundary.direction),
        boundary.stage,
        *boundary.shape,
        boundary.batch.encoded(),
        sha256(payload).digest()[:_HASH_BYTES],
    )
    return head + payload


def decode_boundary(message: bytes | memoryview, boundary: Boundary) -> torch.Tensor:
    """(B, T, D) on the CPU: float64 for "fp64", else float32.

    Raises:
        RemoteProtocolError: anything but what `boundary` says, or values that are not finite; nothing was taken of it.
    """
    if len(message) != boundary.message_bytes:
        raise RemoteProtocolError(
            f"{len(message)} bytes of a {boundary.direction} pass",
            f"{boundary.message_bytes} for {boundary.shape} in {boundary.codec}",
        )
    magic, codec, direction, stage, *shape, batch, digest = _HEAD.unpack_from(message)
    told = (
        ("magic", magic, _MAGIC),
        ("codec", codec, CODECS.index(boundary.codec)),
        ("direction", direction, DIRECTIONS.index(boundary.direction)),
        ("stage", stage, boundary.stage),
        ("shape", tuple(shape), boundary.shape),
    )
    for name, found, expected in told:
        if found != expected:
            raise RemoteProtocolError(f"a boundary message with {name} {found!r}", f"{expected!r}")
    differs = decode_micro_batch(batch).same_work(boundary.batch)
    if differs:
        raise RemoteProtocolError(
            f"a boundary message of {differs}", f"micro-batch {boundary.batch.number} of step {boundary.batch.step}"
        )
    payload = np.frombuffer(message, dtype=np.uint8, offset=HEAD_BYTES)
    if sha256(memoryview(message)[HEAD_BYTES:]).digest()[:_HASH_BYTES] != digest:
        raise RemoteProtocolError("a boundary message whose bytes were changed on the way", "those that its hash says")
    return _decoded(payload, boundary).view(boundary.shape)


def quantised(values_BTD: torch.Tensor, codec: BoundaryCodec) -> torch.Tensor:
    """What is left of the values at the other side, in their own dtype: for whoever computes all stages in one place.

    Raises:
        LocalProtocolError: values that are not finite or too large for the codec.
    """
    sequences, num_tokens, dim = values_BTD.shape
    boundary = Boundary(codec, "forward", 0, _NOBODYS, (sequences, num_tokens, dim))
    payload = np.frombuffer(_encoded(values_BTD.detach().cpu(), codec), dtype=np.uint8)
    return _decoded(payload, boundary).view(values_BTD.shape).to(values_BTD)


_NOBODYS: Final = decode_micro_batch(bytes(MICRO_BATCH_BYTES))


def _encoded(values_BTD: torch.Tensor, codec: BoundaryCodec) -> bytes:
    dim = values_BTD.shape[-1]
    if not bool(torch.isfinite(values_BTD).all()):
        raise LocalProtocolError(
            "a boundary with values that are not finite", "finite ones", "leave this micro-batch out"
        )
    if codec == "fp64":
        return values_BTD.double().contiguous().numpy().astype("<f8").tobytes()
    rows: F32Array = values_BTD.float().contiguous().numpy().reshape(-1, dim)
    if values_BTD.dtype != torch.float32 and not np.isfinite(rows).all():
        raise LocalProtocolError("a boundary with values beyond float32", "smaller ones", "leave this micro-batch out")
    if codec == "fp32":
        return rows.astype("<f4").tobytes()
    if codec == "bf16":
        return _to_bfloat16(rows).tobytes()
    return _codes_of(rows, codec)


def _to_bfloat16(rows: F32Array) -> U16Array:
    """Round half to even, to the largest finite one where that would be infinity."""
    bits = rows.view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))
    halves = (rounded >> 16).astype("<u2")
    too_large = (halves & np.uint16(0x7FFF)) > _LARGEST_SCALE
    return np.where(too_large, halves - np.uint16(1), halves).astype("<u2")


def _groups(rows: F32Array, codec: BoundaryCodec) -> F32Array:
    """(rows, groups, values) with zeros behind the last value of a row."""
    size = rows.shape[1] if codec == "int8" else GROUP_VALUES
    padding = -rows.shape[1] % size
    padded = np.pad(rows, ((0, 0), (0, padding))) if padding else rows
    return padded.reshape(len(rows), -1, size)


def _codes_of(rows: F32Array, codec: BoundaryCodec) -> bytes:
    """Per row: scales, then codes."""
    largest, groups = np.float32(_LARGEST_CODE[codec]), _groups(rows, codec)
    exact: F32Array = np.abs(groups).max(axis=2) / largest
    exact[exact < SMALLEST_NORMAL] = 0.0
    scales = ((exact.view(np.uint32) + np.uint32(0xFFFF)) >> 16).astype("<u2")  # the next bfloat16, never a smaller one
    by = _from_bfloat16(scales)
    if by.max(initial=0.0) > np.finfo(np.float32).max / largest:
        raise LocalProtocolError(
            f"a boundary with values too large for {codec}", "smaller ones", "leave this micro-batch out"
        )
    # Values of a group without a scale are divided by infinity, which makes them zeros.
    relative: F32Array = groups / np.where(by > 0, by, np.float32(np.inf))[:, :, None]
    np.rint(relative, out=relative)
    np.clip(relative, -largest, largest, out=relative)
    codes = relative.astype(np.int8).reshape(len(rows), -1)
    if codec == "int4":
        halves = codes.view(np.uint8) & 15
        codes = (halves[:, 0::2] | (halves[:, 1::2] << 4)).view(np.int8)
    written = codes[:, : row_bytes(codec, rows.shape[1]) - 2 * scales.shape[1]]
    return np.hstack([scales.view(np.uint8), written.view(np.uint8)]).tobytes()


def _from_bfloat16(halves: U16Array) -> F32Array:
    return (halves.astype(np.uint32) << 16).view(np.float32)


def _decoded(payload: U8Array, boundary: Boundary) -> torch.Tensor:
    """(B x T x D,) values. Raises RemoteProtocolError for what no encoder writes and what is not finite."""
    codec, dim = boundary.codec, boundary.shape[2]
    if codec == "fp64":
        exact = torch.from_numpy(payload.view("<f8").astype(np.float64))
        return _require_finite(exact, codec)
    if codec == "fp32":
        return _require_finite(torch.from_numpy(payload.view("<f4").astype(np.float32)), codec)
    if codec == "bf16":
        return _require_finite(torch.from_numpy(_from_bfloat16(payload.view("<u2"))), codec)
    table = payload.reshape(-1, row_bytes(codec, dim))
    num_scales = 1 if codec == "int8" else -(-dim // GROUP_VALUES)
    halves = np.ascontiguousarray(table[:, : 2 * num_scales]).view("<u2")
    if (halves > _LARGEST_SCALE).any() or ((halves != 0) & (halves < 0x80)).any():
        raise RemoteProtocolError(f"{codec} with a scale that is negative, not normal or not finite", "zero or normal")
    codes = _codes(table[:, 2 * num_scales :], codec, dim)
    if (codes < -_LARGEST_CODE[codec]).any():
        raise RemoteProtocolError(f"{codec} with a code that nobody writes", f"at least -{_LARGEST_CODE[codec]:g}")
    scales = _from_bfloat16(halves)
    spread = scales if codec == "int8" else np.repeat(scales, GROUP_VALUES, axis=1)[:, :dim]
    values: F32Array = codes.astype(np.float32)
    with np.errstate(over="ignore"):  # what overflows is refused
        values *= spread
        may_overflow = not np.isfinite(scales.max(initial=0.0) * np.float32(_LARGEST_CODE[codec]))
    return _require_finite(torch.from_numpy(values), codec) if may_overflow else torch.from_numpy(values)


def _codes(written: U8Array, codec: BoundaryCodec, dim: int) -> npt.NDArray[np.int8]:
    """(rows, dim) codes."""
    if codec == "int8":
        return written.view(np.int8)
    both = np.stack([written & 15, written >> 4], axis=2).reshape(len(written), -1)
    if dim % 2 and both[:, dim].any():
        raise RemoteProtocolError("int4 with bits behind a row's last value", "zeros there")
    signed: npt.NDArray[np.int8] = (both[:, :dim] ^ 8).astype(np.int8) - np.int8(8)
    return signed


def _require_finite(values: torch.Tensor, codec: str) -> torch.Tensor:
    if not bool(torch.isfinite(values).all()):
        raise RemoteProtocolError(f"{codec} values that are not finite", "finite values")
    return values
