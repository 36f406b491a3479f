"""Invites: one pasteable line that carries everything a newcomer needs, the coordinator's CA certificate included.

"potluck1:" and base64url, without padding, of: checksum 4 | JSON. The CA authenticates the coordinator before the secret is sent.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from protocol.errors import ConfigError, RefusedError, VersionError
from protocol.ids import RunId

PREFIX: Final = "potluck1:"
SECRET_BYTES: Final = 16
_CHECKSUM_BYTES: Final = 4
_MAX_LETTERS: Final = 8192


@dataclass(frozen=True, slots=True)
class Invite:
    """Where to go, whom to trust, and the secret that opens the door.

    Attributes:
        coordinator_addresses: "host:port" of the coordinator's gRPC service.
        ca_certificate_der: the run's CA: gRPC takes a certificate, not its hash.
        secret: 16 bytes; the coordinator keeps only their hash.
        bootstrap: multiaddresses of long-lived peers.
        max_uses: how many peers may join with it; what counts is the coordinator's own record.
    """

    coordinator_addresses: tuple[str, ...]
    ca_certificate_der: bytes
    run_id: RunId
    secret: bytes
    expires_unix_s: int
    bootstrap: tuple[str, ...]
    max_uses: int

    def encode(self) -> str:
        """The line to paste."""
        body = json.dumps(
            {
                "a": list(self.coordinator_addresses),
                "c": base64.b64encode(self.ca_certificate_der).decode(),
                "r": self.run_id.hex(),
                "s": self.secret.hex(),
                "e": self.expires_unix_s,
                "b": list(self.bootstrap),
                "n": self.max_uses,
            },
            separators=(",", ":"),
        ).encode()
        checksum = sha256(body).digest()[:_CHECKSUM_BYTES]
        return PREFIX + base64.urlsafe_b64encode(checksum + body).decode().rstrip("=")

    def ensure_fresh(self, now_unix_s: float) -> None:
        """Raises RefusedError when the invite has expired by our clock."""
        late_s = now_unix_s - self.expires_unix_s
        if late_s > 0:
            raise RefusedError(
                f"the invite expired {late_s / 60:.0f} minutes ago",
                "a fresh one",
                "ask the host for a new invite (or check this machine's clock)",
            )

    def __repr__(self) -> str:
        return f"Invite(run={self.run_id[:4].hex()}, to={self.coordinator_addresses})"  # never the secret


def decode_invite(text: str) -> Invite:
    """The invite in a pasted line.

    Raises:
        VersionError: made by a newer Potluck.
        ConfigError: not an invite, cut off or mistyped.
    """
    text = "".join(text.split())
    remedy = "copy the whole line that the host printed"
    if not text.startswith(PREFIX):
        kind, colon, _ = text.partition(":")
        if colon and kind.startswith("potluck") and kind[7:].isdigit():
            raise VersionError(f"an invite of version {kind[7:]}", "version 1", "install a newer potluck")
        raise ConfigError(f"an invite that begins with {text[:12]!r}", f"{PREFIX}...", remedy)
    if len(text) > _MAX_LETTERS:
        raise ConfigError(f"an invite of {len(text)} letters", f"at most {_MAX_LETTERS}", remedy)
    encoded = text[len(PREFIX) :]
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError("an invite that is cut off or mistyped", "a whole invite", remedy) from error
    checksum, body = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
    if sha256(body).digest()[:_CHECKSUM_BYTES] != checksum:
        raise ConfigError("an invite that is cut off or mistyped (its checksum is wrong)", "a whole invite", remedy)
    return _from_json(body)


def _from_json(body: bytes) -> Invite:
    try:
        values = json.loads(body)
        invite = Invite(
            coordinator_addresses=tuple(str(a) for a in values["a"]),
            ca_certificate_der=base64.b64decode(values["c"], validate=True),
            run_id=RunId(bytes.fromhex(values["r"])),
            secret=bytes.fromhex(values["s"]),
            expires_unix_s=int(values["e"]),
            bootstrap=tuple(str(a) for a in values["b"]),
            max_uses=int(values["n"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"an invite without its parts ({error})", "a whole invite", "ask the host for a new one"
        ) from error
    if len(invite.run_id) != 32 or len(invite.secret) != SECRET_BYTES or not invite.coordinator_addresses:
        raise ConfigError("an invite with parts of the wrong length", "a whole invite", "ask the host for a new one")
    return invite


def hash_secret(secret: bytes) -> bytes:
    """What the coordinator stores in the place of the secret (128 random bits need no salt)."""
    return sha256(b"potluck invite secret" + secret).digest()
