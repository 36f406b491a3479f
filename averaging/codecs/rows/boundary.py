"""Messages between the stages of a pipeline, as checked bytes: activations one way, their gradients the other.

Layout: a head of 92 bytes (magic, codec, direction, stage, shape, the micro-batch's whole identity, a hash of the payload), then
the payload: one row of values per token, as averaging/codecs/rows writes them. Both sides compute with the decoded values, so
repeated work gives the same numbers.

A wrong message is refused whole, with the reason, before anything is computed from it. Sizes are checked before memory is
allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import numpy as np
import torch

from averaging.bundled_kinds import load_kind
from averaging.codecs.rows.row_codec import RowCodec
from protocol.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from protocol.kinds.boundary_table import BOUNDARY_CODECS
from protocol.pipeline.micro_batch import MICRO_BATCH_BYTES, MicroBatch, decode_micro_batch

Direction = Literal["forward", "backward"]
BoundaryCodec: TypeAlias = str
"""A name in protocol/kinds/boundary_table.py; `Boundary` refuses all others."""

CODECS: Final[tuple[BoundaryCodec, ...]] = tuple(BOUNDARY_CODECS)
DIRECTIONS: Final[tuple[Direction, ...]] = ("forward", "backward")

MAX_PAYLOAD_BYTES: Final = 1 << 30
_MAGIC: Final = b"PLB1"
_HASH_BYTES: Final = 16
_HEAD: Final = struct.Struct(f"<4sBBHIII{MICRO_BATCH_BYTES}s{_HASH_BYTES}s")
HEAD_BYTES: Final = _HEAD.size

_ROWS: Final[Mapping[str, RowCodec]] = MappingProxyType(
    {n: load_kind("averaging.codecs.rows", facts.module or n, n, RowCodec) for n, facts in BOUNDARY_CODECS.items()}  # type: ignore[type-abstract]
)


@dataclass(frozen=True, slots=True)
class Boundary:
    """The receiver's expectations between two stages. A message that differs in any of them is refused.

    Attributes:
        stage: the stage that the values are for.
        batch: identity of the micro-batch.
    """

    codec: BoundaryCodec
    direction: Direction
    stage: int
    batch: MicroBatch
    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        if self.codec not in CODECS or self.direction not in DIRECTIONS:
            expected = f"{' or '.join(DIRECTIONS)} in one of {', '.join(CODECS)}"
            raise ConfigError(f"a {self.direction} pass in {self.codec!r}", expected)
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
        """Exact length after the head."""
        sequences, num_tokens, dim = self.shape
        return sequences * num_tokens * row_bytes(self.codec, dim)

    @property
    def message_bytes(self) -> int:
        """Exact length of the whole message."""
        return HEAD_BYTES + self.payload_bytes


def row_bytes(codec: BoundaryCodec, dim: int) -> int:
    """Bytes of one token."""
    return BOUNDARY_CODECS[codec].row_bytes(dim)


def encode_boundary(values_BTD: torch.Tensor, boundary: Boundary) -> bytes:
    """Encode values (B, T, D). Both sides compute with what `decode_boundary` makes of the message.

    Raises:
        LocalProtocolError: values of another shape than `boundary`'s, not finite, or too large for the codec.
    """
    if tuple(values_BTD.shape) != boundary.shape or not values_BTD.dtype.is_floating_point:
        raise LocalProtocolError(
            f"values of {tuple(values_BTD.shape)} in {values_BTD.dtype}", f"{boundary.shape} floats"
        )
    payload = _encoded(values_BTD.detach().cpu(), boundary.codec)
    head = _HEAD.pack(
        _MAGIC,
        BOUNDARY_CODECS[boundary.codec].number,
        DIRECTIONS.index(boundary.direction),
        boundary.stage,
        *boundary.shape,
        boundary.batch.encoded(),
        sha256(payload).digest()[:_HASH_BYTES],
    )
    return head + payload


def decode_boundary(message: bytes | memoryview, boundary: Boundary) -> torch.Tensor:
    """Decode to (B, T, D) on the CPU: float64 for "fp64", else float32.

    Raises:
        RemoteProtocolError: the message does not match `boundary`, or has values that are not finite. Nothing of it is used.
    """
    if len(message) != boundary.message_bytes:
        raise RemoteProtocolError(
            f"{len(message)} bytes of a {boundary.direction} pass",
            f"{boundary.message_bytes} for {boundary.shape} in {boundary.codec}",
        )
    magic, codec, direction, stage, *shape, batch, digest = _HEAD.unpack_from(message)
    checks = (
        ("magic", magic, _MAGIC),
        ("codec", codec, BOUNDARY_CODECS[boundary.codec].number),
        ("direction", direction, DIRECTIONS.index(boundary.direction)),
        ("stage", stage, boundary.stage),
        ("shape", tuple(shape), boundary.shape),
    )
    for name, found, expected in checks:
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
    return _ROWS[boundary.codec].decode(payload, boundary.shape[2]).view(boundary.shape)


def _encoded(values_BTD: torch.Tensor, codec: BoundaryCodec) -> bytes:
    if not bool(torch.isfinite(values_BTD).all()):
        raise LocalProtocolError(
            "a boundary with values that are not finite", "finite ones", "leave this micro-batch out"
        )
    return _ROWS[codec].encode(values_BTD)
