"""Revocations: the host's signed statements that a peer is banned. Peers pass them on; each trusts only the signature.

An entry is an envelope of domain "potluck revoke" whose sequence is the entry's number in the host's ledger. Its payload:

    unix time u64, s | length of the peer id u8 | peer id, ASCII | reason, UTF-8

Several entries together are each preceded by their length, u16; integers are big-endian. A revocation does not invalidate what the
peer signed before: records are judged as of their round.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Final

from protocol.errors import ConfigError, RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, open_envelope, seal
from protocol.identity.identity import Signer, Verifier, public_key_from_peer_id
from protocol.ids import PeerId, RunId

REVOKE_DOMAIN: Final = "potluck revoke"
MAX_REVOCATIONS: Final = 1024
"""Most entries that a peer keeps: a run with so many bans needs another way of admission."""

MAX_REASON_BYTES: Final = 200
MAX_ENTRY_BYTES: Final = 512
MAX_ANSWER_BYTES: Final = 256 << 10
FINGERPRINT_BYTES: Final = 8
"""Enough to tell the host's own entries apart; nobody else can make one."""

_HEAD: Final = struct.Struct(">QB")
_LENGTH: Final = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class Revocation:
    """A banned peer, since when (unix time, s) and why. `number` counts the entries of the host's ledger from 1."""

    peer: PeerId
    reason: str
    unix_s: int
    number: int


def seal_revocation(host: Signer, run_id: RunId, revocation: Revocation) -> bytes:
    """The entry, signed by the run's host.

    Raises:
        ConfigError: the reason is too long or cannot be shown on one line.
        RemoteProtocolError: the peer id is malformed.
    """
    public_key_from_peer_id(revocation.peer)
    reason = revocation.reason.encode()
    if len(reason) > MAX_REASON_BYTES or not revocation.reason.isprintable():
        raise ConfigError(f"a reason of {len(reason)} bytes", f"one line of at most {MAX_REASON_BYTES}", "shorten it")
    peer = revocation.peer.encode("ascii")
    payload = _HEAD.pack(revocation.unix_s, len(peer)) + peer + reason
    return seal(host, REVOKE_DOMAIN, run_id, revocation.number, NEVER_MS, payload)


def open_revocation(entry: bytes, *, verifier: Verifier, run_id: RunId, host_public_key: bytes) -> Revocation:
    """The content of an entry, after its signature was checked.

    Raises:
        RemoteProtocolError, VersionError: malformed, of another run, or not signed by this host.
    """
    if len(entry) > MAX_ENTRY_BYTES:
        raise RemoteProtocolError(f"a revocation of {len(entry)} bytes", f"at most {MAX_ENTRY_BYTES}")
    envelope = open_envelope(entry, verifier=verifier, domain=REVOKE_DOMAIN, run_id=run_id, now_unix_ms=None)
    if envelope.public_key != host_public_key:
        raise RemoteProtocolError("a revocation that the host did not sign", "the host's signature")
    try:
        unix_s, length = _HEAD.unpack_from(envelope.payload)
        peer = PeerId(envelope.payload[_HEAD.size :][:length].decode("ascii"))
        reason = envelope.payload[_HEAD.size + length :].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError("a revocation that cannot be read", "a peer and a reason") from error
    public_key_from_peer_id(peer)
    if not reason.isprintable():
        raise RemoteProtocolError("a revocation whose reason cannot be shown", "one line of text")
    return Revocation(peer, reason, unix_s, envelope.sequence)


def fingerprint(entry: bytes) -> bytes:
    """The short name of an entry in questions to others."""
    return sha256(entry).digest()[:FINGERPRINT_BYTES]


def check_fingerprints(data: bytes) -> bytes:
    """Check fingerprints with which a peer names its entries.

    Raises:
        RemoteProtocolError: cut off, or more than a peer keeps.
    """
    if len(data) % FINGERPRINT_BYTES or len(data) > MAX_REVOCATIONS * FINGERPRINT_BYTES:
        raise RemoteProtocolError(f"{len(data)} bytes of fingerprints", f"at most {MAX_REVOCATIONS} whole ones")
    return data


def missing(entries: Iterable[bytes], known: bytes) -> tuple[bytes, ...]:
    """Entries whose fingerprints are not among `known`, as many as one answer holds; the asker asks again for the rest.

    Raises:
        RemoteProtocolError: as `check_fingerprints`.
    """
    check_fingerprints(known)
    there = {known[i : i + FINGERPRINT_BYTES] for i in range(0, len(known), FINGERPRINT_BYTES)}
    answer: list[bytes] = []
    room = MAX_ANSWER_BYTES
    for entry in entries:
        if fingerprint(entry) not in there:
            room -= _LENGTH.size + len(entry)
            if room < 0:
                break
            answer.append(entry)
    return tuple(answer)


def has_others(entries: Iterable[bytes], known: bytes) -> bool:
    """Whether `known` names an entry that is not among these."""
    ours = {fingerprint(entry) for entry in entries}
    return any(known[i : i + FINGERPRINT_BYTES] not in ours for i in range(0, len(known), FINGERPRINT_BYTES))


def join_entries(entries: Iterable[bytes]) -> bytes:
    """Entries as one answer, or one file."""
    return b"".join(_LENGTH.pack(len(entry)) + entry for entry in entries)


def split_entries(data: bytes) -> tuple[bytes, ...]:
    """The entries of an answer or a file; none of them is checked yet.

    Raises:
        RemoteProtocolError: cut off, or more than a peer keeps.
    """
    entries: list[bytes] = []
    begin = 0
    while begin < len(data):
        head = data[begin : begin + _LENGTH.size]
        stop = begin + _LENGTH.size + (int.from_bytes(head, "big") if len(head) == _LENGTH.size else len(data))
        if stop > len(data) or len(entries) == MAX_REVOCATIONS:
            raise RemoteProtocolError(f"{len(data)} bytes of signed entries", "whole ones, not more than anybody keeps")
        entries.append(data[begin + _LENGTH.size : stop])
        begin = stop
    return tuple(entries)


@dataclass(frozen=True, slots=True)
class RevocationBook:
    """The entries that one peer has checked, by fingerprint, and the peers that they name."""

    entries: Mapping[bytes, bytes] = field(default_factory=lambda: MappingProxyType({}))
    by_peer: Mapping[PeerId, Revocation] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def fingerprints(self) -> bytes:
        """The fingerprints of our entries, sent along when we ask for the rest."""
        return b"".join(sorted(self.entries))

    def missing_at(self, known: bytes) -> tuple[bytes, ...]:
        """The entries that a peer with these fingerprints lacks. Raises as `missing`."""
        return missing((entry for _, entry in sorted(self.entries.items())), known)

    def with_entries(
        self, offered: Sequence[bytes], *, verifier: Verifier, run_id: RunId, host_public_key: bytes
    ) -> RevocationBook:
        """The book with these entries added, each checked first; the same book when there is nothing new.

        Raises:
            RemoteProtocolError, VersionError: one of them is no entry of this host: do not trust its sender.
        """
        entries, by_peer = dict(self.entries), dict(self.by_peer)
        for entry in offered:
            name = fingerprint(entry)
            if name in entries or len(entries) >= MAX_REVOCATIONS:
                continue
            found = open_revocation(entry, verifier=verifier, run_id=run_id, host_public_key=host_public_key)
            entries[name] = entry
            standing = by_peer.get(found.peer)
            if standing is None or found.number < standing.number:
                by_peer[found.peer] = found
        if len(entries) == len(self.entries):
            return self
        return RevocationBook(MappingProxyType(entries), MappingProxyType(by_peer))
