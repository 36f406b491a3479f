"""The signed envelope: a fixed binary layout around an opaque payload, judged as received.

    domain 16 | version u16 | run id 32 | sender public key 32 | sequence u64 | expiry u64 (unix ms)
    | length u32 | payload | signature 64

Integers are big-endian. The signature covers every byte before it. Protobuf bytes are not canonical, so nothing is serialised again
to check a signature (protobuf.dev, "serialization-not-canonical").
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from protocol.errors import LocalProtocolError, RemoteProtocolError, SupersededError, VersionError
from protocol.identity.identity import SIGNATURE_BYTES, Signer, Verifier
from protocol.ids import PROTOCOL_VERSION, READABLE_VERSIONS, PeerId

_HEADER: Final = struct.Struct(">16sH32s32sQQI")
_SEAL: Final = struct.Struct(">HQQ64s")
SEAL_BYTES: Final = _SEAL.size
OVERHEAD_BYTES: Final = _HEADER.size + SIGNATURE_BYTES
"""Of an envelope, beside its payload."""

DOMAIN_BYTES: Final = 16
MAX_PAYLOAD_BYTES: Final = 1 << 20
NEVER_MS: Final = (1 << 64) - 1
"""Expiry of messages that are judged as of their round and not by the clock."""
SESSION_BITS: Final = 32
MAX_SESSION: Final = (1 << (64 - SESSION_BITS)) - 1
MAX_GUARDED_SENDERS: Final = 4096
REPLAY_WINDOW: Final = 1024
_WINDOW_MASK: Final = (1 << REPLAY_WINDOW) - 1


@dataclass(frozen=True, slots=True)
class Envelope:
    """An envelope whose signature was checked. `raw` is all of it, as received."""

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
        now_unix_ms: judge the expiry at this time; None where records are judged as of their round, also those of older releases.

    Raises:
        VersionError: made by another protocol version.
        RemoteProtocolError: malformed, another domain or run, expired, or a bad signature.
    """
    if not OVERHEAD_BYTES <= len(data) <= OVERHEAD_BYTES + MAX_PAYLOAD_BYTES:
        raise RemoteProtocolError(f"an envelope of {len(data)} bytes", "one of at most 1 MiB")
    tag, version, run, public_key, sequence, expires_unix_ms, length = _HEADER.unpack_from(data)
    if tag != _domain_bytes(domain):
        raise RemoteProtocolError(f"an envelope for {tag.rstrip(bytes(1))!r}", f"{domain!r}")
    if version != PROTOCOL_VERSION and (now_unix_ms is not None or version not in READABLE_VERSIONS):
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
class Seal:
    """The part of an envelope that its reader does not know already, without the payload: 82 bytes.

    A record carries these for statements whose content it names anyway. The envelope is built again from both to be checked.
    """

    version: int
    sequence: int
    expires_unix_ms: int
    signature: bytes

    def packed(self) -> bytes:
        """The wire form: version u16 | sequence u64 | expiry u64 | signature 64, big-endian."""
        return _SEAL.pack(self.version, self.sequence, self.expires_unix_ms, self.signature)


def seal_of(envelope: bytes) -> bytes:
    """The packed `Seal` of an envelope.

    Raises:
        RemoteProtocolError: the bytes are too short to be an envelope.
    """
    if len(envelope) < _HEADER.size + SIGNATURE_BYTES:
        raise RemoteProtocolError(f"an envelope of {len(envelope)} bytes", "a whole one")
    _, version, _, _, sequence, expires_unix_ms, _ = _HEADER.unpack_from(envelope)
    return Seal(version, sequence, expires_unix_ms, envelope[-SIGNATURE_BYTES:]).packed()


def taken_apart(envelope: bytes) -> tuple[bytes, bytes, bytes]:
    """The sender's public key, the payload and the packed `Seal` of an envelope, unchecked: `enveloped` puts them together again.

    Raises:
        RemoteProtocolError: the bytes are too short to be an envelope.
    """
    packed = seal_of(envelope)
    return _HEADER.unpack_from(envelope)[3], envelope[_HEADER.size : -SIGNATURE_BYTES], packed


def enveloped(packed: bytes, *, domain: str, run_id: bytes, public_key: bytes, payload: bytes) -> bytes:
    """The envelope that this seal and this payload make; `open_envelope` judges it.

    Raises:
        RemoteProtocolError: not a packed seal.
    """
    if len(packed) != SEAL_BYTES:
        raise RemoteProtocolError(f"a seal of {len(packed)} bytes", f"{SEAL_BYTES} bytes")
    version, sequence, expires_unix_ms, signature = _SEAL.unpack(packed)
    header = _HEADER.pack(_domain_bytes(domain), version, run_id, public_key, sequence, expires_unix_ms, len(payload))
    return header + payload + bytes(signature)


def next_session(last: int, now_unix_s: float) -> int:
    """The session number of the next process: above `last`, the one stored on this disk (0 for none), and not below the time. If
    two machines have copies of one identity, the one started later has the higher number, whatever each of them stored.

    Raises:
        LocalProtocolError: no number is left above `last`: there are MAX_SESSION of them, enough for one a second until 2106.
    """
    session = max(last + 1, min(int(now_unix_s), MAX_SESSION))
    if not 0 < session <= MAX_SESSION:
        raise LocalProtocolError(f"session {session}", f"1 to {MAX_SESSION}")
    return session


def first_sequence(session: int) -> int:
    """The first sequence number of a process. `session` is stored on disk before it is used, which reserves 2^32 numbers for one
    write: no number is used twice, even after a crash.
    """
    return session << SESSION_BITS


def session_of(sequence: int) -> int:
    """The session that a sequence number belongs to."""
    return sequence >> SESSION_BITS


def superseded() -> SupersededError:
    """The error that ends the older of two processes with one identity, however it learns of the newer one."""
    return SupersededError(
        "another process with this identity joined with a newer session",
        "one process per identity",
        "leave it to the other one; a second machine needs an identity of its own: join there with a new --state-dir",
    )


class ReplayGuard:
    """Remembers which sequence numbers came from each sender, in a sliding window below the highest (RFC 4303, section 3.4.3).

    Messages of one sender may arrive out of order, so a number below the highest is no replay by itself. Memory is bounded: the
    latest `most_senders`, and REPLAY_WINDOW numbers each; older numbers count as replays.
    """

    def __init__(self, most_senders: int = MAX_GUARDED_SENDERS) -> None:
        self._most_senders = most_senders
        self._seen: OrderedDict[PeerId, tuple[int, int]] = OrderedDict()

    def newest_session(self, sender: PeerId) -> int:
        """The session of a sender's latest message, 0 for a sender never heard."""
        highest, _ = self._seen.get(sender, (0, 0))
        return session_of(highest)

    def admit(self, envelope: Envelope) -> bool:
        """True for a new number of this sender, which is then stored. False for a replay."""
        highest, window = self._seen.get(envelope.sender, (-1, 0))
        ahead = envelope.sequence - highest
        if ahead > 0:
            window = (window << ahead | 1) & _WINDOW_MASK if ahead < REPLAY_WINDOW else 1
            highest = envelope.sequence
        elif -ahead >= REPLAY_WINDOW or window >> -ahead & 1:
            return False
        else:
            window |= 1 << -ahead
        self._seen[envelope.sender] = (highest, window)
        self._seen.move_to_end(envelope.sender)
        while len(self._seen) > self._most_senders:
            self._seen.popitem(last=False)
        return True
