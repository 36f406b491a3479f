"""A signer for simulation: a keyed hash in the place of Ed25519, a quarter of its cost. It passes the real one's contract suite."""

from __future__ import annotations

from hashlib import blake2b

from protocol.errors import RemoteProtocolError
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId, RunId

WORLD_KEY = b"one key for the whole simulated world"
_PREFIX = "sim"
_NAMED_BYTES = 6
"""So many bytes of a key are in a peer id; the rest of the key is zeros."""


class HashSigner:
    """Signs as one simulated peer; its public key is the hash of its name."""

    def __init__(self, seed: bytes) -> None:
        self._public_key = blake2b(seed, digest_size=32).digest()[:_NAMED_BYTES].ljust(32, b"\0")
        self._peer_id = PeerId(_PREFIX + self._public_key[:_NAMED_BYTES].hex())

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


AUTHORITY = HashSigner(b"the authority of every simulated run")


class HashVerifier:
    """Checks what HashSigners sign."""

    @property
    def authority(self) -> PeerId:
        """The authority of every simulated run."""
        return AUTHORITY.peer_id

    def verify(self, public_key: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the owner of the key signed the message."""
        return blake2b(public_key + message, key=WORLD_KEY).digest() == signature

    def peer_id_of(self, public_key: bytes) -> PeerId:
        """The peer id of a key."""
        return PeerId(_PREFIX + public_key[:_NAMED_BYTES].hex())

    def public_key_of(self, peer: PeerId) -> bytes:
        """The key that a peer id names."""
        try:
            return bytes.fromhex(peer.removeprefix(_PREFIX)).ljust(32, b"\0")
        except ValueError as error:
            raise RemoteProtocolError(f"peer id {peer}", "the id of a simulated peer") from error

    def admits(self, credential: bytes, peer: PeerId, run_id: RunId) -> bool:
        """Whether it is a credential that `admission_of` gives this peer."""
        return self.standing(credential, peer, run_id) is not None

    def standing(self, credential: bytes, peer: PeerId, run_id: RunId) -> PeerStanding | None:
        """The standing with which `admission_of` gives this peer the credential."""
        return next((each for each in PeerStanding if credential == admission_of(peer, run_id, each)), None)


def admission_of(peer: PeerId, run_id: RunId, standing: PeerStanding = PeerStanding.KEEPER) -> bytes:
    """The credential of a simulated peer, as the authority of the run would issue it."""
    about = b"admitted" + run_id + peer.encode()
    about += b"" if standing is PeerStanding.KEEPER else bytes([standing])
    return blake2b(about, key=WORLD_KEY).digest()
