"""Invites: one pasteable line with everything that a newcomer needs, the coordinator's CA certificate included.

"potluck1:" and base64, without padding and with "_" for "/", of:

    checksum 4 | run id 32 | secret 16 | expiry u64 (unix s) | uses u32 | certificate | coordinator addresses | bootstrap

An open run has a line without a secret, which may be published: "potluck2:", and in place of the parts from the secret to the uses
nothing. Strangers solve a puzzle instead (protocol/identity/puzzle.py).

Integers are big-endian. The certificate is a length u16 and its bytes; or 0, and the bytes that differ between runs' CAs. The
second form takes half the bytes, and the line's QR code then fits a terminal of 80 columns. Addresses are a count u8, then a length
u16 and text each. In bootstrap each text is followed by 0, or by 1 and the public key 32 that its "/p2p/" names, which the text
then leaves out. The CA authenticates the coordinator before the secret is sent.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from protocol.byte_reader import ByteReader
from protocol.errors import ConfigError, RefusedError, RemoteProtocolError, VersionError
from protocol.identity.identity import KEY_BYTES, peer_id_from_public_key, public_key_from_peer_id
from protocol.ids import PeerId, RunId

PREFIX: Final = "potluck1:"
OPEN_PREFIX: Final = "potluck2:"
_ALTCHARS: Final = b"+_"
"""Not base64url's "-": if a line is broken up in pasting, a piece that begins with "-" would be an option of the command line."""

SECRET_BYTES: Final = 16
_CHECKSUM_BYTES: Final = 4
_MAX_LETTERS: Final = 8192
_HEADER: Final = struct.Struct(f">32s{SECRET_BYTES}sQIH")
"""Run id, secret, expiry, uses, length of the certificate."""

_OPEN_HEADER: Final = struct.Struct(">32sH")
"""Run id, length of the certificate."""

_LENGTH: Final = struct.Struct(">H")
_PEER_PART: Final = "/p2p/"

_CA_NAME: Final = bytes.fromhex("3020311e301c06035504030c15") + b"potluck run authority"
_CA_PARTS: Final = (
    bytes.fromhex("308201173081caa0030201020214"),
    bytes.fromhex("300506032b6570") + _CA_NAME + bytes.fromhex("301e170d"),
    bytes.fromhex("5a170d"),
    b"Z" + _CA_NAME + bytes.fromhex("302a300506032b6570032100"),
    bytes.fromhex("a316301430120603551d130101ff040830060101ff020100300506032b6570034100"),
)
"""Bytes that are the same in the certificate (DER) of every run's CA, as protocol/identity/credential.py makes it; a test checks
that.
"""

_CA_OWN_BYTES: Final = (20, 12, 12, 32, 64)
"""Lengths of the values after these parts: serial number, first and last moment (yymmddhhmmss), public key, signature."""

_CA_SHAPE: Final = re.compile(
    b"".join(re.escape(part) + b"(.{%d})" % length for part, length in zip(_CA_PARTS, _CA_OWN_BYTES, strict=True)),
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Invite:
    """Addresses of the coordinator, the CA to trust, and the secret that admits a peer.

    Attributes:
        coordinator_addresses: "host:port" of the coordinator's gRPC service.
        ca_certificate_der: the run's CA: gRPC takes a certificate, not its hash.
        secret: 16 bytes; the coordinator keeps only their hash.
        bootstrap: multiaddresses of long-lived peers.
        max_uses: how many peers may join with it; the coordinator's own record decides.
        is_open: the line of an open run: it has no secret, no end and no limit.
    """

    coordinator_addresses: tuple[str, ...]
    ca_certificate_der: bytes
    run_id: RunId
    secret: bytes
    expires_unix_s: int
    bootstrap: tuple[str, ...]
    max_uses: int
    is_open: bool = False

    def encode(self) -> str:
        """The line to paste."""
        own = _CA_SHAPE.fullmatch(self.ca_certificate_der)
        length, certificate = (
            (0, b"".join(own.groups())) if own else (len(self.ca_certificate_der), self.ca_certificate_der)
        )
        header = _HEADER.pack(self.run_id, self.secret, self.expires_unix_s, self.max_uses, length)
        body = (
            (_OPEN_HEADER.pack(self.run_id, length) if self.is_open else header)
            + certificate
            + bytes([len(self.coordinator_addresses)])
            + b"".join(map(_packed, self.coordinator_addresses))
            + bytes([len(self.bootstrap)])
            + b"".join(map(_packed_node, self.bootstrap))
        )
        checksum = sha256(body).digest()[:_CHECKSUM_BYTES]
        prefix = OPEN_PREFIX if self.is_open else PREFIX
        return prefix + base64.b64encode(checksum + body, altchars=_ALTCHARS).decode().rstrip("=")

    def ensure_fresh(self, now_unix_s: float) -> None:
        """Raises RefusedError when the invite has expired by our clock."""
        late_s = now_unix_s - self.expires_unix_s
        if late_s > 0 and not self.is_open:
            raise RefusedError(
                f"the invite expired {late_s / 60:.0f} minutes ago",
                "a fresh one",
                "ask the host for a new invite (or check this machine's clock)",
            )

    def __repr__(self) -> str:
        return f"Invite(run={self.run_id[:4].hex()}, to={self.coordinator_addresses})"  # never the secret


_COMMAND: Final = re.compile("^\\$?potluckjoin(?=potluck[0-9])")
"""The command before the invite in the line that the host prints, without its white space."""

_NO_LETTERS: Final = re.compile("[\\s\ufeff\u200b-\u200f\u2060]+")
"""White space, byte order marks and letters without width, which editors and chats put around a line or into it."""


def decode_invite(text: str) -> Invite:
    """The invite in a pasted line.

    Raises:
        VersionError: made by a newer Potluck.
        ConfigError: not an invite, cut off or mistyped.
    """
    text = _COMMAND.sub("", _NO_LETTERS.sub("", text))
    remedy = "copy the whole line that the host printed"
    if not text.startswith((PREFIX, OPEN_PREFIX)):
        kind, colon, _ = text.partition(":")
        if colon and kind.startswith("potluck") and kind[7:].isdigit():
            raise VersionError(f"an invite of version {kind[7:]}", "version 1 or 2", "install a newer potluck")
        raise ConfigError(f"an invite that begins with {text[:12]!r}", f"{PREFIX}...", remedy)
    if len(text) > _MAX_LETTERS:
        raise ConfigError(f"an invite of {len(text)} letters", f"at most {_MAX_LETTERS}", remedy)
    encoded = text[len(PREFIX) :].replace("-", "+")  # as older builds wrote it
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=_ALTCHARS, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError("an invite that is cut off or mistyped", "a whole invite", remedy) from error
    checksum, body = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
    if sha256(body).digest()[:_CHECKSUM_BYTES] != checksum:
        raise ConfigError("an invite that is cut off or mistyped (its checksum is wrong)", "a whole invite", remedy)
    return _parsed(body, is_open=text.startswith(OPEN_PREFIX))


def _packed(text: str) -> bytes:
    coded = text.encode()
    return _LENGTH.pack(len(coded)) + coded


def _packed_node(address: str) -> bytes:
    """A multiaddress, with its peer id in less than two thirds of its letters."""
    place, _, peer = address.rpartition(_PEER_PART)
    try:
        key = public_key_from_peer_id(PeerId(peer))
        is_whole = peer_id_from_public_key(key) == peer
    except RemoteProtocolError:
        is_whole = False
    return _packed(place) + bytes([1]) + key if place and is_whole else _packed(address) + bytes([0])


def _text(reader: ByteReader) -> str:
    return reader.text(reader.u16())


def _node(reader: ByteReader) -> str:
    place = _text(reader)
    return place + _PEER_PART + peer_id_from_public_key(reader.take(KEY_BYTES)) if reader.u8() else place


def _certificate(reader: ByteReader, length: int) -> bytes:
    if length:
        return reader.take(length)
    return b"".join(part + reader.take(own) for part, own in zip(_CA_PARTS, _CA_OWN_BYTES, strict=True))


def _parsed(body: bytes, *, is_open: bool) -> Invite:
    reader = ByteReader(body)
    secret, expires_unix_s, max_uses = b"", 0, 0
    try:
        if is_open:
            run_id, length = _OPEN_HEADER.unpack(reader.take(_OPEN_HEADER.size))
        else:
            run_id, secret, expires_unix_s, max_uses, length = _HEADER.unpack(reader.take(_HEADER.size))
        certificate = _certificate(reader, length)
        addresses = tuple([_text(reader) for _ in range(reader.u8())])
        bootstrap = tuple([_node(reader) for _ in range(reader.u8())])
        reader.end()
    except (ValueError, RemoteProtocolError) as error:
        raise ConfigError(
            f"an invite without its parts ({error})", "a whole invite", "ask the host for a new one"
        ) from error
    if not addresses:
        raise ConfigError("an invite without an address", "a whole invite", "ask the host for a new one")
    return Invite(addresses, certificate, RunId(run_id), secret, expires_unix_s, bootstrap, max_uses, is_open)


def hash_secret(secret: bytes) -> bytes:
    """The hash that the coordinator stores in place of the secret (128 random bits need no salt)."""
    return sha256(b"potluck invite secret" + secret).digest()
