"""Ed25519 identities and the libp2p peer ids that derive from them.

A peer id is the base58 form of the "identity" multihash of the public key's libp2p protobuf (libp2p spec, peer-ids). Ed25519 keys
fit inside, so the key can be read back from the id.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from protocol.errors import ConfigError, RemoteProtocolError
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId, RunId

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_MULTIHASH_PREFIX: Final = bytes([0x00, 0x24])
"""Multihash code 0 (identity), 36 bytes follow."""
_PUBLIC_KEY_PREFIX: Final = bytes([0x08, 0x01, 0x12, 0x20])
"""crypto.proto PublicKey: field 1 Type = Ed25519 (1), field 2 Data of 32 bytes."""
_PRIVATE_KEY_PREFIX: Final = bytes([0x08, 0x01, 0x12, 0x40])
"""crypto.proto PrivateKey: field 1 Type = Ed25519 (1), field 2 Data of 64 bytes (seed, public key)."""
_ED25519_P: Final = 2**255 - 19


class Signer(Protocol):
    """Signs as one peer."""

    @property
    def peer_id(self) -> PeerId:
        """The peer that signs."""
        ...

    @property
    def public_key(self) -> bytes:
        """32 bytes."""
        ...

    def sign(self, message: bytes) -> bytes:
        """A 64-byte signature of `message`."""
        ...


class Verifier(Hashable, Protocol):
    """Checks signatures of any key."""

    @property
    def authority(self) -> PeerId:
        """The run's certificate authority as a signer; empty where only signatures are checked."""
        ...

    def verify(self, public_key: bytes, message: bytes, signature: bytes) -> bool:
        """Whether `signature` is that of the key's owner on `message`."""
        ...

    def peer_id_of(self, public_key: bytes) -> PeerId:
        """The peer id of a public key. Raises RemoteProtocolError for a malformed key."""
        ...

    def public_key_of(self, peer: PeerId) -> bytes:
        """The public key of a peer. Raises RemoteProtocolError for a malformed id."""
        ...

    def admits(self, credential: bytes, peer: PeerId, run_id: RunId) -> bool:
        """Whether the run's authority issued this credential to this peer, at any time. False for malformed ones, too."""
        ...

    def standing(self, credential: bytes, peer: PeerId, run_id: RunId) -> PeerStanding | None:
        """The standing that this credential gives the peer; None where `admits` is False."""
        ...


def _base58(data: bytes) -> str:
    number = int.from_bytes(data, "big")
    letters = ""
    while number:
        number, digit = divmod(number, 58)
        letters = _ALPHABET[digit] + letters
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + letters


def _from_base58(text: str) -> bytes:
    number = 0
    for letter in text:
        digit = _ALPHABET.find(letter)
        if digit < 0:
            raise RemoteProtocolError(f"letter {letter!r} in a peer id", "base58")
        number = number * 58 + digit
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def peer_id_from_public_key(public_key: bytes) -> PeerId:
    """The libp2p peer id of a 32-byte Ed25519 public key.

    Raises:
        RemoteProtocolError: wrong length, or a non-canonical encoding of a point: two ids for one key would be two votes.
    """
    if len(public_key) != KEY_BYTES:
        raise RemoteProtocolError(f"a public key of {len(public_key)} bytes", f"{KEY_BYTES} bytes")
    if int.from_bytes(public_key, "little") & ((1 << 255) - 1) >= _ED25519_P:
        raise RemoteProtocolError("a non-canonical Ed25519 public key", "its canonical encoding")
    return PeerId(_base58(_MULTIHASH_PREFIX + _PUBLIC_KEY_PREFIX + public_key))


def public_key_from_peer_id(peer_id: PeerId) -> bytes:
    """The 32-byte Ed25519 public key inside a peer id.

    Raises:
        RemoteProtocolError: not the id of an Ed25519 key.
    """
    if len(peer_id) > 64:
        raise RemoteProtocolError(f"a peer id of {len(peer_id)} letters", "52 letters")
    raw = _from_base58(peer_id)
    prefix = _MULTIHASH_PREFIX + _PUBLIC_KEY_PREFIX
    if not raw.startswith(prefix) or len(raw) != len(prefix) + KEY_BYTES:
        raise RemoteProtocolError(f"peer id {peer_id}", "the id of an Ed25519 key (12D3KooW...)")
    return raw[len(prefix) :]


class Identity:
    """An Ed25519 key pair that signs as its peer."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != KEY_BYTES:
            raise ConfigError(f"an identity seed of {len(seed)} bytes", f"{KEY_BYTES} bytes")
        self._seed = seed
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self._public_key = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self._peer_id = peer_id_from_public_key(self._public_key)

    @property
    def peer_id(self) -> PeerId:
        """The libp2p peer id."""
        return self._peer_id

    @property
    def public_key(self) -> bytes:
        """32 bytes."""
        return self._public_key

    def sign(self, message: bytes) -> bytes:
        """A 64-byte Ed25519 signature."""
        return self._key.sign(message)

    def libp2p_private_key_bytes(self) -> bytes:
        """The identity file's content, as p2pd reads it: a serialized crypto.proto PrivateKey of 68 bytes."""
        return _PRIVATE_KEY_PREFIX + self._seed + self._public_key

    def __repr__(self) -> str:
        return f"Identity({self._peer_id})"  # never the key


def identity_from_libp2p_bytes(data: bytes) -> Identity:
    """The identity in the bytes of an identity file.

    Raises:
        ConfigError: not such a file, or its public half does not belong to its secret half.
    """
    if len(data) != len(_PRIVATE_KEY_PREFIX) + 2 * KEY_BYTES or not data.startswith(_PRIVATE_KEY_PREFIX):
        raise ConfigError(f"{len(data)} bytes that are no Ed25519 identity", "68 bytes as written by potluck")
    identity = Identity(data[len(_PRIVATE_KEY_PREFIX) :][:KEY_BYTES])
    if identity.public_key != data[-KEY_BYTES:]:
        raise ConfigError(
            "an identity whose two halves do not belong together", "an intact file", "restore your backup"
        )
    return identity
