"""Several sealed messages to one peer in one call, and the outcome of each: units whose rounds coincide send many at the same
moment.

    bundle    tag 16 | for each message: length u32, envelope
    answer    nothing where all were taken; else for each message: length u16, reason of its refusal, of no bytes where it was taken

Integers are big-endian. The tag stands in the place of an envelope's domain, so a peer that knows no bundles refuses it. It then
gets one message after another. A bundle proves nothing and is not signed; each envelope is judged as if it came alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.identity.envelope import DOMAIN_BYTES
from protocol.received import shown

TAG: Final = b"potluck bundle".ljust(DOMAIN_BYTES, b"\0")
MAX_BUNDLED: Final = 16
"""Messages in one bundle. Two peers seldom have rounds of more units at a time."""

MAX_BUNDLE_BYTES: Final = 1 << 15
"""Bytes of all messages in a bundle and their lengths, so that the first message need not wait long for the last on a thin line. A
longer message goes alone.
"""

MAX_REASON_BYTES: Final = 256

_LENGTH: Final = struct.Struct(">I")
_REASON: Final = struct.Struct(">H")
LENGTH_BYTES: Final = _LENGTH.size


def is_bundle(request: bytes) -> bool:
    """Whether a request is meant as a bundle and not as one envelope."""
    return request.startswith(TAG)


def encode_bundle(envelopes: Sequence[bytes]) -> bytes:
    """The request that carries these envelopes.

    Raises:
        LocalProtocolError: more or longer ones than a bundle may have.
    """
    body = b"".join(_LENGTH.pack(len(raw)) + raw for raw in envelopes)
    if not 2 <= len(envelopes) <= MAX_BUNDLED or len(body) > MAX_BUNDLE_BYTES:
        raise LocalProtocolError(
            f"{len(envelopes)} messages of {len(body)} bytes in a bundle",
            f"2 to {MAX_BUNDLED} of at most {MAX_BUNDLE_BYTES} bytes",
        )
    return TAG + body


def decode_bundle(request: bytes) -> tuple[bytes, ...]:
    """The envelopes in a request, none of them judged yet; all lengths are checked before anything is copied.

    Raises:
        RemoteProtocolError: no bundle, or one with too much in it.
    """
    if not is_bundle(request) or len(request) > len(TAG) + MAX_BUNDLE_BYTES:
        raise RemoteProtocolError(f"a bundle of {len(request)} bytes", f"at most {len(TAG) + MAX_BUNDLE_BYTES}")
    parts: list[tuple[int, int]] = []
    at = len(TAG)
    while at < len(request):
        if len(parts) == MAX_BUNDLED:
            raise RemoteProtocolError(f"a bundle of more than {MAX_BUNDLED} messages", f"at most {MAX_BUNDLED}")
        begin, at = _part(request, at, _LENGTH, "bundle")
        parts.append((begin, at))
    if not parts:
        raise RemoteProtocolError("a bundle with nothing in it", "the messages of several units")
    return tuple([request[begin:stop] for begin, stop in parts])


def encode_answer(reasons: Iterable[str]) -> bytes:
    """For each message the reason of its refusal, or nothing."""
    said = [reason.encode()[:MAX_REASON_BYTES] for reason in reasons]
    return b"".join(_REASON.pack(len(reason)) + reason for reason in said) if any(said) else b""


def decode_answer(answer: bytes, num_messages: int) -> tuple[str, ...]:
    """For each message the reason of its refusal; "" for one that was taken.

    Raises:
        RemoteProtocolError: not the answer to `num_messages` messages.
    """
    if not answer:
        return ("",) * num_messages
    if len(answer) > num_messages * (_REASON.size + MAX_REASON_BYTES):
        raise RemoteProtocolError(
            f"an answer of {len(answer)} bytes", f"at most {MAX_REASON_BYTES} bytes for each of {num_messages} messages"
        )
    reasons: list[str] = []
    at = 0
    while at < len(answer) and len(reasons) < num_messages:
        begin, at = _part(answer, at, _REASON, "answer")
        reasons.append(shown(answer[begin:at].decode(errors="replace")))
    if at != len(answer) or len(reasons) != num_messages:
        raise RemoteProtocolError(
            f"an answer of {len(answer)} bytes for {len(reasons)} messages", f"one for {num_messages}"
        )
    return tuple(reasons)


def _part(data: bytes, at: int, length: struct.Struct, what: str) -> tuple[int, int]:
    """First and stop byte of the part whose length stands at `at`."""
    begin = at + length.size
    if begin > len(data):
        raise RemoteProtocolError(f"a length cut off at byte {at} of a {what}", "whole parts")
    (num_bytes,) = length.unpack_from(data, at)
    if num_bytes > len(data) - begin:
        raise RemoteProtocolError(f"a part of {num_bytes} bytes at byte {at} of a {what}", f"{len(data) - begin} bytes")
    return begin, begin + num_bytes
