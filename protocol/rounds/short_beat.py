"""A heartbeat that says again what was said before, in a few bytes: which one it is like, and the tokens ready now (rule 4).

    first 8 bytes of the hash of what stays the same | number u32 | tokens ready u64 for each head

Integers are big-endian. A whole heartbeat has 350 bytes and more with its envelope; between two commits only the tokens in it change.
A short one is not signed: it is a hint, passed on to nobody, and the channel tells for certain who sent it. The number counts up in a
process life: what comes late or twice is older than what is known. Who does not know the whole one says so and is sent it.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.rounds.messages import MAX_MEMBERS, Heartbeat, UnitHead
from protocol.wire import encode_message

_PREFIX: Final = struct.Struct(">8sI")
_TOKENS: Final = struct.Struct(">Q")
NUM_LIKE: Final = 1024
"""Likenesses remembered: of so many peers, those that they told last."""

LAST_NUMBER: Final = (1 << 32) - 1
SAY_WHOLE: Final = b"?"
"""The answer to a short heartbeat that is like none that is known."""


@dataclass(frozen=True, slots=True)
class ShortBeat:
    """What a short heartbeat says. `likeness` names a whole one of its sender."""

    likeness: bytes
    number: int
    tokens_ready: tuple[int, ...]


def likeness(heartbeat: Heartbeat) -> bytes:
    """8 bytes that two heartbeats have in common when they differ in the tokens ready alone."""
    return _likeness(_with_tokens(heartbeat, (0,) * len(heartbeat.heads)))


@functools.lru_cache(maxsize=NUM_LIKE)
def _likeness(heartbeat: Heartbeat) -> bytes:
    """Of one without tokens: what is told and heard between two commits is the same again and again."""
    return sha256(encode_message(heartbeat)).digest()[:8]


def _with_tokens(said: Heartbeat, tokens_ready: tuple[int, ...]) -> Heartbeat:
    """The same with other tokens ready, for each head. Written out, for `dataclasses.replace` takes several times as long."""
    heads = tuple(
        [
            UnitHead(
                head.unit,
                head.head,
                head.index,
                head.total_tokens,
                tokens,
                head.can_contribute,
                head.state_commit,
                head.state_root,
            )
            for head, tokens in zip(said.heads, tokens_ready, strict=True)
        ]
    )
    return Heartbeat(
        said.member, said.is_inbound_reachable, said.upload_bytes_per_s, heads, said.exchange_ms, said.silent
    )


def encode_short(heartbeat: Heartbeat, like: bytes, number: int) -> bytes:
    """The short form of a heartbeat whose `likeness` is `like`."""
    tokens = b"".join(_TOKENS.pack(head.tokens_ready) for head in heartbeat.heads)
    return _PREFIX.pack(like, number) + tokens


def decode_short(raw: bytes) -> ShortBeat:
    """Raises RemoteProtocolError for bytes of no such form."""
    num_heads, rest = divmod(len(raw) - _PREFIX.size, _TOKENS.size)
    if rest or not 0 <= num_heads <= MAX_MEMBERS:
        raise RemoteProtocolError(f"a short heartbeat of {len(raw)} bytes", "12, and 8 for each unit")
    like, number = _PREFIX.unpack_from(raw)
    return ShortBeat(like, number, tuple(tokens for (tokens,) in _TOKENS.iter_unpack(raw[_PREFIX.size :])))


def made_whole(heartbeat: Heartbeat, short: ShortBeat) -> Heartbeat:
    """What the sender of this whole heartbeat says with a short one of its likeness.

    Raises:
        RemoteProtocolError: another number of heads, or tokens beyond what can be.
    """
    if len(short.tokens_ready) != len(heartbeat.heads):
        found = f"a short heartbeat of {len(short.tokens_ready)} units"
        raise RemoteProtocolError(found, f"{len(heartbeat.heads)}, as in the one that it is like")
    return _with_tokens(heartbeat, short.tokens_ready)
