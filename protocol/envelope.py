"""The signed envelope: a fixed binary layout around an opaque payload, judged as received.

    domain 16 | version u16 | run id 32 | sender public key 32 | sequence u64 | expiry u64 (unix ms)
    | length u32 | payload | signature 64

Integers are big-endian. The signature covers every byte before it. Protobuf bytes are not canonical, so nothing is ever
serialised again to check a signature (protobuf.dev, "serialization-not-canonical").
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final

from protocol.errors import LocalProtocolError, RemoteProtocolError, VersionError
from protocol.identity import SIGNATURE_BYTES, Signer, Verifier
from protocol.ids import PROTOCOL_VERSION, PeerId

_HEADER: Final = struct.Struct(">16sH32s32sQQI")
DOMAIN_BYTES: Final = 16
MAX_PAYLOAD_BYTES: Final = 1 << 20
NEVER_MS: Final = (1 << 64) - 1
"""Expiry of what is judged as of its round and not by the clock."""
SEQUENCE_BLOCK: Final = 1000
MAX_GUARDED_SENDERS: Final = 4096


@dataclass(frozen=True, slots=True)
class Envelope:
    """An envelope whose signature was checked. `raw` is what was received, whole."""

    sender: PeerId
    public_key: bytes
    sequence: int
    expires_unix_ms: int
    payload: bytes
    raw: bytes


def _domain_bytes(domain: str) -> bytes:
    tag = domain.encode()
    if not 0 < len(tag) <= DOMAIN_BYTES:
        raise LocalProtocolError(f"domain tag {domain!r}", f"1 to {DOMAIN_BYTES} bytes")
    return tag.ljust(DOMAIN_BYTES, b"\0")


def seal(signer: Signer, domain: str, run_id: bytes, sequence: int, expires_unix_ms: int, payload: bytes) -> bytes:
    """Sign `payload` for one purpose (`domain`) in one run.

    Raises:
        LocalProtocolError: payload too long, or a run id that is not 32 bytes.
    """
    if len(payload) > MAX_PAYLOAD_BYTES or len(run_id) != 32:
        raise LocalProtocolError(
            f"payload of {len(payload)} bytes, run id of {len(run_id)}", "at most 1 MiB, and 32 bytes"
        )
    header = _HEADER.pack(
        _domain_bytes(domain), PROTOCOL_VERSION, run_id, signer.public_key, sequence, expires_unix_ms, len(payload)
    )
    body = header + payload
    return body + signer.sign(body)


def open_envelope(
    data: bytes, *, verifier: Verifier, domain: str, run_id: bytes | None, now_unix_ms: int | None
) -> Envelope:
    """Check an envelope and take it apart, cheap checks first.

    Args:
        run_id: the run it must belong to; None only before one is known (opening a manifest).
        now_unix_ms: judge the expiry at this time; None where records are judged as of their round.

    Raises:
        VersionError: made by another protocol version.
        RemoteProtocolError: malformed, another domain or run, expired, or a bad signature.
    """
    if not _HEADER.size + SIGNATURE_BYTES <= len(data) <= _HEADER.size + SIGNATURE_BYTES + MAX_PAYLOAD_BYTES:
        raise RemoteProtocolError(f"an envelope of {len(data)} bytes", "one of at most 1 MiB")
    tag, version, run, public_key, sequence, expires_unix_ms, length = _HEADER.unpack_from(data)
    if tag != _domain_bytes(domain):
        raise RemoteProtocolError(f"an envelope for {tag.rstrip(bytes(1))!r}", f"{domain!r}")
    if version != PROTOCOL_VERSION:
        raise VersionError(
            f"a message of protocol version {version}",
            f"version {PROTOCOL_VERSION}",
            "install the run's version of potluck",
        )
    if run_id is not None and run != run_id:
        raise RemoteProtocolError(f"an envelope of run {run[:4].hex()}", f"run {run_id[:4].hex()}")
    if len(data) != _HEADER.size + length + SIGNATURE_BYTES:
        raise RemoteProtocolError(f"an envelope of {len(data)} bytes", f"{_HEADER.size + length + SIGNATURE_BYTES}")
    if now_unix_ms is not None and now_unix_ms > expires_unix_ms:
        raise RemoteProtocolError(
            f"a message that expired {(now_unix_ms - expires_unix_ms) / 1000:.0f} s ago",
            "a fresh one",
            "check both clocks",
        )
    sender = verifier.peer_id_of(public_key)
    body, signature = data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]
    if not verifier.verify(public_key, body, signature):
        raise RemoteProtocolError(f"a bad signature in the name of {sender}", "the sender's own")
    return Envelope(sender, public_key, sequence, expires_unix_ms, data[_HEADER.size : -SIGNATURE_BYTES], data)


@dataclass(frozen=True, slots=True)
class SequenceBlocks:
    """Sequence numbers that never repeat, reserved durably in blocks so that most of them cost no disk write.

    Attributes:
        next_sequence: the next number to hand out.
        reserved_until: numbers below this are reserved on disk; after a crash the next block begins here.
    """

    next_sequence: int
    reserved_until: int

    @property
    def needs_reservation(self) -> bool:
        """Whether a block must be made durable before the next number is used."""
        return self.next_sequence >= self.reserved_until

    def reserve(self) -> SequenceBlocks:
        """The state after one more block; make `reserved_until` durable before using it."""
        return replace(self, reserved_until=max(self.next_sequence, self.reserved_until) + SEQUENCE_BLOCK)

    def take(self) -> tuple[int, SequenceBlocks]:
        """A number, and the state after it.

        Raises:
            LocalProtocolError: nothing is reserved.
        """
        if self.needs_reservation:
            raise LocalProtocolError("a sequence number that is not reserved", "reserve() made durable first")
        return self.next_sequence, replace(self, next_sequence=self.next_sequence + 1)


class ReplayGuard:
    """Remembers the highest sequence number of each sender, for at most MAX_GUARDED_SENDERS of them, latest kept."""

    def __init__(self) -> None:
        self._highest: OrderedDict[PeerId, int] = OrderedDict()

    def admit(self, envelope: Envelope) -> bool:
        """True for a number above all that came from this sender; it is remembered. False for a replay."""
        if envelope.sequence <= self._highest.get(envelope.sender, -1):
            return False
        self._highest[envelope.sender] = envelope.sequence
        self._highest.move_to_end(envelope.sender)
        while len(self._highest) > MAX_GUARDED_SENDERS:
            self._highest.popitem(last=False)
        return True
