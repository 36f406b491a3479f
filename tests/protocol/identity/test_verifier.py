from __future__ import annotations

import pytest

from protocol.errors import RemoteProtocolError
from protocol.identity.credential import make_ca, make_request, make_tls_key, open_request
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, RunId

NOW = 1_800_000_000.0
RUN, OTHER_RUN = RunId(b"r" * 32), RunId(b"q" * 32)
CA = make_ca(b"c" * 32, now_unix_s=NOW)
ALICE, BOB = Identity(b"a" * 32), Identity(b"b" * 32)
VERIFIER = Ed25519Verifier(CA.certificate_der)


def _credential(who: Identity = ALICE, now: float = NOW) -> bytes:
    request = make_request(who, RUN, make_tls_key(), now)
    opened = open_request(request, verifier=Ed25519Verifier(), run_id=RUN, now_unix_s=now)
    return CA.issue(opened, RUN, now_unix_s=now, days=30, serial=7)


def test_a_credential_admits_its_own_peer_to_its_own_run() -> None:
    credential = _credential()
    assert VERIFIER.admits(credential, ALICE.peer_id, RUN)
    assert not VERIFIER.admits(credential, BOB.peer_id, RUN)
    assert not VERIFIER.admits(credential, ALICE.peer_id, OTHER_RUN)


def test_a_credential_of_another_authority_admits_nobody() -> None:
    other = make_ca(b"d" * 32, now_unix_s=NOW)
    assert not Ed25519Verifier(other.certificate_der).admits(_credential(), ALICE.peer_id, RUN)


def test_who_was_admitted_once_is_so_for_its_records_years_later() -> None:
    """No time is asked for: a record is judged as of its round, and a newcomer must still be able to check it when it has ended."""
    assert VERIFIER.admits(_credential(now=NOW - 20 * 365 * 86400.0), ALICE.peer_id, RUN)


@pytest.mark.parametrize("credential", [b"", b"no certificate", CA.certificate_der, _credential()[:-1]])
def test_what_is_no_credential_admits_nobody_and_raises_nothing(credential: bytes) -> None:
    assert not VERIFIER.admits(credential, ALICE.peer_id, RUN)


def test_a_verifier_without_an_authority_checks_signatures_and_admits_nobody() -> None:
    assert Ed25519Verifier().verify(ALICE.public_key, b"message", ALICE.sign(b"message"))
    assert not Ed25519Verifier().admits(_credential(), ALICE.peer_id, RUN)


def test_a_malformed_key_or_signature_is_no_good_signature_and_raises_nothing() -> None:
    signature = ALICE.sign(b"message")
    for key, found in (
        (b"", signature),
        (ALICE.public_key, b""),
        (ALICE.public_key[:-1], signature),
        (b"\xff" * 32, signature),
    ):
        assert not VERIFIER.verify(key, b"message", found)


def test_a_peer_id_and_its_key_name_each_other() -> None:
    assert VERIFIER.public_key_of(ALICE.peer_id) == ALICE.public_key
    assert VERIFIER.peer_id_of(ALICE.public_key) == ALICE.peer_id
    with pytest.raises(RemoteProtocolError):
        VERIFIER.public_key_of(PeerId("nobody"))
