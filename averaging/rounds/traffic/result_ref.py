"""A reducer's short reference to its result, for members that do not lead the attempt: it names the bytes in 40 bytes.

The signed header tells the leader which contributions were summed, in 170 bytes a member; the record tells all members later. A
member only has to fetch the bytes: the record names what it acks and applies. The stream authenticates the reducer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, Root
from protocol.rounds.messages.messages import ResultHeader

_REF: Final = struct.Struct(">II32s")
_NEED: Final = b"N"
_PLACE: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class ResultRef:
    """The result of one slice on one base."""

    base: CommitId
    first_chunk: int
    stop_chunk: int
    result_hash: Root

    def encode(self) -> bytes:
        """Its wire form; the base is that of the stream's hello."""
        return _REF.pack(self.first_chunk, self.stop_chunk, self.result_hash)


NamedResult = ResultHeader | ResultRef
"""Names the bytes of a result, with or without the rest of its header."""


def ref_of(header: ResultHeader) -> ResultRef:
    """The part of a header that names the bytes."""
    return ResultRef(header.base, header.first_chunk, header.stop_chunk, header.result_hash)


def read_ref(frame: bytes, base: CommitId) -> ResultRef:
    """Read a reference. Raises RemoteProtocolError for a frame of another length."""
    if len(frame) != _REF.size:
        raise RemoteProtocolError(f"a result reference of {len(frame)} bytes", f"{_REF.size}")
    first_chunk, stop_chunk, result_hash = _REF.unpack(frame)
    return ResultRef(base, first_chunk, stop_chunk, Root(result_hash))


def need_from(place: int) -> bytes:
    """A member's request for the rest of a result of which it has the first `place` chunks."""
    return _NEED + (_PLACE.pack(place) if place else b"")


def read_need(frame: bytes, num_chunks: int) -> int | None:
    """The first chunk that a member needs of a result with `num_chunks` chunks; None if it needs none.

    Raises:
        RemoteProtocolError: a place that the result does not have.
    """
    if not frame.startswith(_NEED):
        return None
    place = _PLACE.unpack(frame[1:])[0] if len(frame) == 1 + _PLACE.size else 0
    if len(frame) not in (1, 1 + _PLACE.size) or place > num_chunks:
        raise RemoteProtocolError(
            f"a request of {len(frame)} bytes from chunk {place} on", f"at most chunk {num_chunks}"
        )
    return int(place)
