"""What a reducer says of its result to a member that does not lead the attempt: which bytes they are, in 40 bytes.

The signed header tells the leader whose contributions were summed, in 170 bytes a member; the record will say it to everybody. A
member needs no more than to fetch the bytes: what it acks and applies is named by the record, not by this. The stream says who speaks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, Root
from protocol.rounds.messages.messages import ResultHeader

_WORD: Final = struct.Struct(">II32s")
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
        """As it travels; the base is that of the stream's greeting."""
        return _WORD.pack(self.first_chunk, self.stop_chunk, self.result_hash)


NamedResult = ResultHeader | ResultRef
"""Names the bytes of a result, with all that its reducer says of them or without."""


def ref_of(header: ResultHeader) -> ResultRef:
    """The part of a header that names the bytes."""
    return ResultRef(header.base, header.first_chunk, header.stop_chunk, header.result_hash)


def read_word(frame: bytes, base: CommitId) -> ResultRef:
    """Raises RemoteProtocolError for a frame of another length."""
    if len(frame) != _WORD.size:
        raise RemoteProtocolError(f"a result's word of {len(frame)} bytes", f"{_WORD.size}")
    first_chunk, stop_chunk, result_hash = _WORD.unpack(frame)
    return ResultRef(base, first_chunk, stop_chunk, Root(result_hash))


def need_from(place: int) -> bytes:
    """What a member answers that has so many of a result's first chunks: the rest, please."""
    return _NEED + (_PLACE.pack(place) if place else b"")


def read_need(frame: bytes, num_chunks: int) -> int | None:
    """From which place on a member needs the chunks of a result of so many; None where it needs nothing.

    Raises:
        RemoteProtocolError: a place that the result does not have.
    """
    if not frame.startswith(_NEED):
        return None
    place = _PLACE.unpack(frame[1:])[0] if len(frame) == 1 + _PLACE.size else 0
    if len(frame) not in (1, 1 + _PLACE.size) or place > num_chunks:
        raise RemoteProtocolError(f"a need of {len(frame)} bytes from chunk {place} on", f"one of {num_chunks} chunks")
    return int(place)
