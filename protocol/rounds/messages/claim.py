"""The claim of a contributor and the sum of a reducer, in fixed layouts: a record carries their seals, not their words.

Integers are big-endian; a text is preceded by its length, u16. Readers of a record build these bytes again from it.

    claim:  "potluck claim 1", of a stranger "potluck claim 2" | unit | base 32 | peer | incarnation u64 | session u64 | tokens u64
            | codec | root 32 | attested 32 | attested root 32 | number of lanes u16, for each: lane u32 | round u32 | tokens u64
    sum:    "potluck sum 1" | unit | base 32 | first chunk u32 | stop chunk u32 | reducer | result hash 32 | lost ppm u32
            | inputs 32: SHA-256 over peer | root 32 | weight u64 of each contribution that is summed, in the order of peers
            where chunks are left out: "potluck sum 2", and at the end
            | left out 32: SHA-256 over peer | number of chunks u32 | agreement i32 of each contribution with such chunks
            where strangers are summed: "potluck sum 3", left out 32 in any case, and at the end
            | strangers 32: SHA-256 over peer of each of them, in the order of peers

A sum names no ballot: the same contributions give the same bytes in every attempt. Both go into envelopes of the round channel.

Rules: R2, R8, R10 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from protocol.byte_reader import ByteReader, BytesLeftError, CutOffError
from protocol.errors import RemoteProtocolError
from protocol.ids import HASH_BYTES, CommitId, PeerId, Root, UnitName
from protocol.received import MAX_TEXT
from protocol.rounds.messages.lane_parts import MAX_PARTS, LanePart
from protocol.rounds.messages.messages import Member
from protocol.rounds.messages.record import Disagreement
from protocol.rounds.messages.requests import ContributionHeader

_CLAIM: Final = b"potluck claim 1"
_STRANGERS_CLAIM: Final = b"potluck claim 2"
_SUM: Final = b"potluck sum 1"
_SUM_IN_PART: Final = b"potluck sum 2"
_SUM_OF_STRANGERS: Final = b"potluck sum 3"
_THREE: Final = struct.Struct(">QQQ")
_LANE: Final = struct.Struct(">IIQ")
_RANGE: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">H")
_NUMBER: Final = struct.Struct(">I")
_WEIGHT: Final = struct.Struct(">Q")
_LEFT_OUT: Final = struct.Struct(">Ii")

_NUM_TEXTS: Final = 3
_NUM_HASHES: Final = 4
MAX_CLAIM_BYTES: Final = (
    len(_CLAIM)
    + _NUM_TEXTS * (_LENGTH.size + MAX_TEXT)
    + _NUM_HASHES * HASH_BYTES
    + _THREE.size
    + _LENGTH.size
    + MAX_PARTS * _LANE.size
)
"""Length of the longest claim: all texts as long as they may be, and as many lanes."""


@dataclass(frozen=True, slots=True)
class Input:
    """One contribution that a reducer summed: whose, which, its integer weight in tokens, and whether its claim is a stranger's."""

    peer: PeerId
    root: Root
    weight: int
    is_stranger: bool = False


@dataclass(frozen=True, slots=True)
class SliceSum:
    """The sum of one slice, as its reducer signs it. `disagreeing` are the inputs of which it leaves chunks out."""

    unit: UnitName
    base: CommitId
    first_chunk: int
    stop_chunk: int
    reducer: PeerId
    result_hash: Root
    lost_ppm: int
    inputs: tuple[Input, ...]
    disagreeing: tuple[Disagreement, ...] = ()


def _text(value: str) -> bytes:
    data = value.encode()
    return _LENGTH.pack(len(data)) + data


def encode_claim(header: ContributionHeader) -> bytes:
    """The bytes that a contributor signs."""
    member = header.member
    parts = [
        _STRANGERS_CLAIM if header.is_stranger else _CLAIM,
        _text(header.unit),
        header.base,
        _text(member.peer),
        _THREE.pack(member.incarnation, member.session, header.tokens),
        _text(header.codec),
        header.root,
        header.attested,
        header.attested_root,
        _LENGTH.pack(len(header.lanes)),
        *(_LANE.pack(part.lane, part.round, part.tokens) for part in header.lanes),
    ]
    return b"".join(parts)


def encode_sum(what: SliceSum) -> bytes:
    """The bytes that a reducer signs."""
    left_out, strangers = what.disagreeing, [each.peer for each in what.inputs if each.is_stranger]
    parts = [
        _SUM_OF_STRANGERS if strangers else _SUM_IN_PART if left_out else _SUM,
        _text(what.unit),
        what.base,
        _RANGE.pack(what.first_chunk, what.stop_chunk),
        _text(what.reducer),
        what.result_hash,
        _NUMBER.pack(what.lost_ppm),
        inputs_hash(what.inputs),
        left_out_hash(left_out) if left_out or strangers else b"",
        strangers_hash(strangers) if strangers else b"",
    ]
    return b"".join(parts)


def inputs_hash(inputs: Iterable[Input]) -> bytes:
    """32 bytes that name the contributions of a sum, in the order of peer ids."""
    ordered = sorted(inputs, key=lambda each: each.peer)
    return sha256(b"".join(_text(each.peer) + each.root + _WEIGHT.pack(each.weight) for each in ordered)).digest()


def left_out_hash(disagreeing: Iterable[Disagreement]) -> bytes:
    """32 bytes that say of which contributions how many chunks are left out of a sum, in the order of peer ids."""
    ordered = sorted(disagreeing, key=lambda each: each.peer)
    said = (_text(each.peer) + _LEFT_OUT.pack(each.num_chunks, each.agreement_percent) for each in ordered)
    return sha256(b"".join(said)).digest()


def strangers_hash(strangers: Iterable[PeerId]) -> bytes:
    """32 bytes that name the strangers among the contributions of a sum, in the order of peer ids."""
    return sha256(b"".join(map(_text, sorted(strangers)))).digest()


def _text_of(source: ByteReader) -> str:
    length = source.u16()
    if length > MAX_TEXT:
        raise RemoteProtocolError(f"a text of {length} bytes in a claim", f"at most {MAX_TEXT}")
    try:
        found = source.text(length)
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("a text in a claim that cannot be read", "UTF-8") from error
    if not found.isprintable():
        raise RemoteProtocolError("a text in a claim that cannot be shown", "printable letters")
    return found


def decode_claim(data: bytes) -> ContributionHeader:
    """The claim in the payload of a contributor's envelope.

    Raises:
        RemoteProtocolError: malformed, cut off, or a value out of its bounds.
    """
    try:
        return _header_of(ByteReader(data))
    except CutOffError as error:
        raise RemoteProtocolError(f"a claim of {len(data)} bytes that ends early", "a whole one") from error
    except BytesLeftError as error:
        raise RemoteProtocolError(f"{error.num_bytes} bytes after a claim", "none") from error


def _header_of(source: ByteReader) -> ContributionHeader:
    kind = source.take(len(_CLAIM))
    if kind not in (_CLAIM, _STRANGERS_CLAIM):
        raise RemoteProtocolError(
            "a contribution without its claim", "one of this release", "install the run's release"
        )
    unit, base, peer = UnitName(_text_of(source)), CommitId(source.take(HASH_BYTES)), PeerId(_text_of(source))
    incarnation, session, tokens = _THREE.unpack(source.take(_THREE.size))
    codec, root = _text_of(source), Root(source.take(HASH_BYTES))
    attested, attested_root = CommitId(source.take(HASH_BYTES)), Root(source.take(HASH_BYTES))
    num_lanes = source.u16()
    if num_lanes > MAX_PARTS:
        raise RemoteProtocolError(f"{num_lanes} lanes' parts in a claim", f"at most {MAX_PARTS}")
    lanes = tuple(LanePart(*_LANE.unpack(source.take(_LANE.size))) for _ in range(num_lanes))
    source.end()
    member = Member(peer, incarnation, session)
    is_stranger = kind == _STRANGERS_CLAIM
    return ContributionHeader(unit, base, member, tokens, codec, root, attested, attested_root, lanes, is_stranger)
