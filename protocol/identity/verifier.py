"""The real verifier: Ed25519 signatures, and credentials that the run's certificate authority issued.

Rules: R25 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from protocol.errors import RefusedError
from protocol.identity.credential import issued_standing, issued_to, public_key_in
from protocol.identity.identity import KEY_BYTES, SIGNATURE_BYTES, peer_id_from_public_key, public_key_from_peer_id
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId, RunId


@functools.lru_cache(maxsize=16)
def _peer_of(authority_der: bytes) -> PeerId:
    return peer_id_from_public_key(public_key_in(authority_der))


@dataclass(frozen=True, slots=True)
class Ed25519Verifier:
    """Checks signatures of any key, and who was admitted.

    Attributes:
        authority_der: the certificate of the run's authority. Empty where only signatures are checked: then nobody is admitted.
    """

    authority_der: bytes = b""

    @property
    def authority(self) -> PeerId:
        """The peer id of the authority's key; empty without one."""
        return _peer_of(self.authority_der) if self.authority_der else PeerId("")

    def verify(self, public_key: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the signature is good; False for malformed keys and signatures too."""
        if len(public_key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
            return False
        try:
            Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True

    def peer_id_of(self, public_key: bytes) -> PeerId:
        """The libp2p peer id of the key."""
        return peer_id_from_public_key(public_key)

    def public_key_of(self, peer: PeerId) -> bytes:
        """The key inside a peer id."""
        return public_key_from_peer_id(peer)

    def admits(self, credential: bytes, peer: PeerId, run_id: RunId) -> bool:
        """Whether the authority issued this credential. Its end is not judged: a record is judged as of its round (R25)."""
        if not self.authority_der or not credential:
            return False
        try:
            return issued_to(credential, self.authority_der, peer_id=peer, run_id=run_id)
        except RefusedError:
            return False

    def standing(self, credential: bytes, peer: PeerId, run_id: RunId) -> PeerStanding | None:
        """The standing that the authority gave the peer with this credential; None if it did not issue it to this peer."""
        return issued_standing(credential, self.authority_der) if self.admits(credential, peer, run_id) else None
