from __future__ import annotations

import pytest

from protocol.errors import ConfigError, RemoteProtocolError
from protocol.identity.identity import (
    Identity,
    Signer,
    Verifier,
    identity_from_libp2p_bytes,
    peer_id_from_public_key,
    public_key_from_peer_id,
)
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId
from tests.simulation.signing import HashSigner, HashVerifier


def test_a_peer_id_carries_its_public_key() -> None:
    identity = Identity(bytes(range(32)))
    assert identity.peer_id.startswith("12D3KooW")
    assert public_key_from_peer_id(identity.peer_id) == identity.public_key


def test_an_identity_file_reads_back_and_a_mixed_up_one_does_not() -> None:
    identity, other = Identity(b"1" * 32), Identity(b"2" * 32)
    data = identity.libp2p_private_key_bytes()
    assert identity_from_libp2p_bytes(data).peer_id == identity.peer_id
    for wrong in (b"", data[:-1], data + b"x", data[:-32] + other.public_key, b"\0" + data[1:]):
        with pytest.raises(ConfigError):
            identity_from_libp2p_bytes(wrong)


def test_a_non_canonical_key_is_refused_so_that_one_key_has_one_id() -> None:
    with pytest.raises(RemoteProtocolError, match="non-canonical"):
        peer_id_from_public_key((2**255 - 19 + 1).to_bytes(32, "little"))
    with pytest.raises(RemoteProtocolError):
        peer_id_from_public_key(b"short")


@pytest.mark.parametrize("text", ["", "0OIl", "12D3KooW", "Qm" + "1" * 44, "1" * 65])
def test_what_is_no_ed25519_peer_id_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        public_key_from_peer_id(PeerId(text))


def test_an_identity_never_prints_its_key() -> None:
    identity = Identity(b"secret seed of thirty-two bytes!")
    assert "secret" not in repr(identity)


PAIRS = [
    pytest.param(Identity(b"a" * 32), Identity(b"b" * 32), Ed25519Verifier(), id="ed25519"),
    pytest.param(HashSigner(b"a"), HashSigner(b"b"), HashVerifier(), id="simulation"),
]


@pytest.mark.parametrize(("signer", "other", "verifier"), PAIRS)
def test_a_signature_is_good_for_its_signer_and_message_only(signer: Signer, other: Signer, verifier: Verifier) -> None:
    signature = signer.sign(b"message")
    assert len(signature) == 64
    assert verifier.verify(signer.public_key, b"message", signature)
    assert not verifier.verify(signer.public_key, b"massage", signature)
    assert not verifier.verify(other.public_key, b"message", signature)
    assert not verifier.verify(signer.public_key, b"message", signature[:-1] + bytes([signature[-1] ^ 1]))
    assert not verifier.verify(signer.public_key, b"message", b"")
    assert verifier.peer_id_of(signer.public_key) == signer.peer_id != other.peer_id
