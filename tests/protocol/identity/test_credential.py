from __future__ import annotations

import pytest

from protocol.errors import ConfigError, RefusedError, RemoteProtocolError
from protocol.identity.credential import (
    check_credential,
    credential_ends_unix_s,
    load_ca,
    make_ca,
    make_request,
    make_tls_key,
    named_peer,
    open_request,
)
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import RunId

NOW = 1_800_000_000.0
RUN = RunId(b"r" * 32)
CA = make_ca(b"c" * 32, now_unix_s=NOW)
ALICE, BOB = Identity(b"a" * 32), Identity(b"b" * 32)


def _credential(now: float = NOW, days: int = 30) -> bytes:
    request = make_request(ALICE, RUN, make_tls_key(), now)
    opened = open_request(request, verifier=Ed25519Verifier(), run_id=RUN, now_unix_s=now)
    return CA.issue(opened, RUN, now_unix_s=now, days=days, serial=7)


def _check(
    der: bytes, ca: bytes = CA.certificate_der, peer: Identity = ALICE, run: RunId = RUN, now: float = NOW
) -> None:
    check_credential(der, ca, peer_id=peer.peer_id, run_id=run, now_unix_s=now)


def test_a_credential_is_good_for_its_peer_run_authority_and_time_only() -> None:
    der = _credential()
    _check(der)
    _check(der, now=NOW + 29 * 86400)
    with pytest.raises(RefusedError, match="another peer"):
        _check(der, peer=BOB)
    with pytest.raises(RefusedError, match="another peer or run"):
        _check(der, run=RunId(b"q" * 32))
    with pytest.raises(RefusedError, match="did not issue"):
        _check(der, ca=make_ca(b"d" * 32, now_unix_s=NOW).certificate_der)
    with pytest.raises(RefusedError, match="ended"):
        _check(der, now=NOW + 31 * 86400)


def test_a_credential_says_whose_it_is() -> None:
    assert named_peer(_credential()) == ALICE.peer_id
    with pytest.raises(RefusedError, match="cannot be read"):
        named_peer(b"")
    with pytest.raises(RefusedError, match="cannot be read"):
        named_peer(CA.certificate_der)  # it names nobody


def test_who_holds_the_authority_has_a_credential_of_its_own() -> None:
    der, key = CA.issue_own(BOB.peer_id, RUN, now_unix_s=NOW)
    _check(der, peer=BOB)
    _check(der, peer=BOB, now=NOW + 3649 * 86400)
    assert named_peer(der) == BOB.peer_id
    assert b"PRIVATE KEY" in key


def test_a_clock_that_is_minutes_behind_still_works_and_one_that_is_hours_behind_is_named() -> None:
    der = _credential()
    _check(der, now=NOW - 300)
    with pytest.raises(RefusedError, match="clock"):
        _check(der, now=NOW - 7200)


def test_a_request_is_bound_to_the_identity_that_signed_it_and_to_the_run() -> None:
    request = make_request(ALICE, RUN, make_tls_key(), NOW)
    assert open_request(request, verifier=Ed25519Verifier(), run_id=RUN, now_unix_s=NOW).peer_id == ALICE.peer_id
    with pytest.raises(RemoteProtocolError):
        open_request(request, verifier=Ed25519Verifier(), run_id=RunId(b"q" * 32), now_unix_s=NOW)
    with pytest.raises(RemoteProtocolError, match="expired"):
        open_request(request, verifier=Ed25519Verifier(), run_id=RUN, now_unix_s=NOW + 3600)
    tampered = bytearray(request)
    tampered[-100] ^= 1
    with pytest.raises(RemoteProtocolError):
        open_request(bytes(tampered), verifier=Ed25519Verifier(), run_id=RUN, now_unix_s=NOW)


def test_garbage_is_no_credential() -> None:
    for data in (b"", b"garbage", CA.certificate_der):
        with pytest.raises(RefusedError):
            _check(data)


def test_the_end_of_a_credential_is_read_also_after_it_has_come() -> None:
    assert credential_ends_unix_s(_credential(days=30)) == pytest.approx(NOW + 30 * 86400)
    with pytest.raises(RefusedError, match="cannot be read"):
        credential_ends_unix_s(b"garbage")


def test_the_authority_comes_back_from_its_parts_and_not_from_mixed_ones() -> None:
    assert load_ca(b"c" * 32, CA.certificate_der).certificate_der == CA.certificate_der
    with pytest.raises(ConfigError):
        load_ca(b"e" * 32, CA.certificate_der)
