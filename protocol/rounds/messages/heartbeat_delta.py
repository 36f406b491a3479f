"""A heartbeat that repeats an earlier one in a few bytes: the digest of that one, and the tokens ready now (R4).

    first 8 bytes of the hash of what stays the same | number u32 | tokens ready u64 for each head

or, if its sender has moved to another commit since, the fields that a commit changes:

    the same of the one before | number u32 | upload ms u32 | upload bytes a second u64
    | tokens ready u64, tokens of the run u64, index u64, whether it may contribute u8, commit 32 for each head

Integers are big-endian. Between two commits only the tokens in a heartbeat change, so the short form saves most of its bytes. A
short one is not signed: it is a hint, passed on to nobody, and the channel proves its sender. The number counts up in a process: a
late or repeated one is dropped. A peer that does not know the whole one says so and gets it. State roots are in whole ones only:
nobody acts on those that are heard.

Rules: R4 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.ids import HASH_BYTES, CommitId, Root
from protocol.rounds.messages.bounds import MAX_MEMBERS
from protocol.rounds.messages.messages import Heartbeat, UnitHead
from protocol.rounds.messages.wire import encode_message

_PREFIX: Final = struct.Struct(">8sI")
_TOKENS: Final = struct.Struct(">Q")
_UPLOAD: Final = struct.Struct(">IQ")
_HEAD: Final = struct.Struct(f">QQQ?{HASH_BYTES}s")
NUM_LIKE: Final = 2048
"""Digests and outlines in the cache: the last ones of about a thousand peers."""

LAST_NUMBER: Final = (1 << 32) - 1
_NO_COMMIT: Final = CommitId(bytes(HASH_BYTES))
_NO_ROOT: Final = Root(bytes(HASH_BYTES))
SAY_WHOLE: Final = b"?"
"""The answer to a short heartbeat whose digest is not known."""


@dataclass(frozen=True, slots=True)
class ShortBeat:
    """The prefix of every short heartbeat. `report_digest` names the whole one that it builds on."""

    report_digest: bytes
    number: int


@functools.lru_cache(maxsize=NUM_LIKE)
def _likeness(heartbeat: Heartbeat) -> bytes:
    """The hash of a heartbeat without tokens, cached: the same ones are sent and heard again and again between two commits."""
    return sha256(encode_message(heartbeat)).digest()[:8]


def report_digest(heartbeat: Heartbeat) -> bytes:
    """8 bytes that two heartbeats share when they differ only in the tokens ready and in state roots."""
    return _likeness(_with_heads(heartbeat, tuple([_without_state(head) for head in heartbeat.heads])))


def is_like(one: Heartbeat, other: Heartbeat) -> bool:
    """Whether two heartbeats have one `report_digest`, and so one `outline`, without hashing any of them."""
    return (
        one.member == other.member
        and one.is_inbound_reachable == other.is_inbound_reachable
        and one.upload_bytes_per_s == other.upload_bytes_per_s
        and one.exchange_ms == other.exchange_ms
        and one.silent == other.silent
        and len(one.heads) == len(other.heads)
        and all(map(_stands_alike, one.heads, other.heads))
    )


def _stands_alike(one: UnitHead, other: UnitHead) -> bool:
    return (
        one.head == other.head
        and one.index == other.index
        and one.total_tokens == other.total_tokens
        and one.can_contribute == other.can_contribute
        and one.unit == other.unit
    )


def outline(heartbeat: Heartbeat) -> bytes:
    """8 bytes that two heartbeats share when they differ only in the fields that a commit changes."""
    heads = tuple([UnitHead(head.unit, _NO_COMMIT, 0, 0, 0, False, _NO_COMMIT, _NO_ROOT) for head in heartbeat.heads])
    return _likeness(Heartbeat(heartbeat.member, heartbeat.is_inbound_reachable, 0, heads, 0, heartbeat.silent))


# Written out: `dataclasses.replace` takes several times as long, and heartbeats are most of the messages heard.


def _without_state(head: UnitHead) -> UnitHead:
    return UnitHead(head.unit, head.head, head.index, head.total_tokens, 0, head.can_contribute, _NO_COMMIT, _NO_ROOT)


def _with_tokens(head: UnitHead, tokens: int) -> UnitHead:
    return UnitHead(
        head.unit,
        head.head,
        head.index,
        head.total_tokens,
        tokens,
        head.can_contribute,
        head.state_commit,
        head.state_root,
    )


def _with_heads(said: Heartbeat, heads: tuple[UnitHead, ...]) -> Heartbeat:
    return Heartbeat(
        said.member, said.is_inbound_reachable, said.upload_bytes_per_s, heads, said.exchange_ms, said.silent
    )


def encode_short(heartbeat: Heartbeat, like: bytes, number: int) -> bytes:
    """The short form of a heartbeat whose `report_digest` is `like`."""
    tokens = b"".join(_TOKENS.pack(head.tokens_ready) for head in heartbeat.heads)
    return _PREFIX.pack(like, number) + tokens


def encode_moved(heartbeat: Heartbeat, like: bytes, number: int) -> bytes:
    """The short form of a heartbeat that has the `outline` of an earlier one; `like` is the `report_digest` of that one."""
    heads = (
        _HEAD.pack(head.tokens_ready, head.total_tokens, head.index, head.can_contribute, head.head)
        for head in heartbeat.heads
    )
    upload = _UPLOAD.pack(heartbeat.exchange_ms, heartbeat.upload_bytes_per_s)
    return _PREFIX.pack(like, number) + upload + b"".join(heads)


def decode_short(raw: bytes) -> ShortBeat:
    """Read the prefix. Raises RemoteProtocolError for bytes of no such form."""
    most = _PREFIX.size + _UPLOAD.size + MAX_MEMBERS * _HEAD.size
    if not _PREFIX.size <= len(raw) <= most:
        raise RemoteProtocolError(f"a short heartbeat of {len(raw)} bytes", f"{_PREFIX.size} to {most}")
    return ShortBeat(*_PREFIX.unpack_from(raw))


def says_tokens_alone(known: Heartbeat, raw: bytes) -> bool:
    """Whether a short one that builds on `known` reports ready tokens and nothing else: then both have one `report_digest`."""
    return len(raw) == _PREFIX.size + len(known.heads) * _TOKENS.size


def made_whole(known: Heartbeat, raw: bytes) -> Heartbeat:
    """The whole heartbeat that a short one of the sender of `known` stands for.

    Raises:
        RemoteProtocolError: another number of heads, or numbers out of range.
    """
    said, num_heads = raw[_PREFIX.size :], len(known.heads)
    if says_tokens_alone(known, raw):
        pairs = zip(known.heads, _TOKENS.iter_unpack(said), strict=True)
        return _with_heads(known, tuple([_with_tokens(head, tokens) for head, (tokens,) in pairs]))
    if len(said) != _UPLOAD.size + num_heads * _HEAD.size:
        found = f"{len(said)} bytes of a short heartbeat"
        raise RemoteProtocolError(found, f"those of {num_heads} units, as in the one that it is like")
    exchange_ms, upload_bytes_per_s = _UPLOAD.unpack_from(said)
    moved = zip(known.heads, _HEAD.iter_unpack(said[_UPLOAD.size :]), strict=True)
    return Heartbeat(
        known.member,
        known.is_inbound_reachable,
        upload_bytes_per_s,
        tuple([_moved_head(head, numbers) for head, numbers in moved]),
        exchange_ms,
        known.silent,
    )


def _moved_head(head: UnitHead, numbers: tuple[int, int, int, bool, bytes]) -> UnitHead:
    ready, total_tokens, index, can_contribute, commit = numbers
    return UnitHead(
        head.unit,
        CommitId(commit),
        index,
        total_tokens,
        ready,
        can_contribute,
        head.state_commit,
        head.state_root,
    )
