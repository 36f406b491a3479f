from __future__ import annotations

import ssl
import time

import pytest

from averaging.network.direct.tls_identity import TlsCredential, credential_check, tls_context
from protocol.errors import ConfigError, RefusedError
from tests.averaging.network.direct_world import ALICE, BOB, CA, DAY_S, OTHER_CA, RUN, credential_of


def test_a_credential_names_its_peer_where_it_counts() -> None:
    check = credential_check(CA.certificate_der, RUN, time.time)
    assert check(credential_of(ALICE).certificate_der) == ALICE.peer_id
    for bad in (credential_of(ALICE, ended_s=1.0), credential_of(ALICE, authority=OTHER_CA)):
        with pytest.raises(RefusedError):
            check(bad.certificate_der)
    with pytest.raises(RefusedError):
        check(b"nothing")
    _, chain = CA.issue_server(("localhost",), now_unix_s=time.time())
    with pytest.raises(RefusedError, match="0 peers"):
        check(
            ssl.PEM_cert_to_DER_cert(chain.decode().split("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----")
        )


def test_the_time_as_of_which_a_credential_is_judged_is_the_runs_to_say() -> None:
    ended = credential_of(ALICE, ended_s=60.0).certificate_der
    yesterday = credential_check(CA.certificate_der, RUN, time.time, lambda _, now_s: now_s - DAY_S / 2)
    assert yesterday(ended) == ALICE.peer_id


def test_a_key_of_another_credential_is_refused() -> None:
    mixed = TlsCredential(credential_of(ALICE).certificate_der, credential_of(BOB).key_pem)
    for is_server in (True, False):
        with pytest.raises(ConfigError, match="credential"):
            tls_context(mixed, CA.certificate_der, is_server=is_server)
    with pytest.raises(ConfigError):
        tls_context(TlsCredential(b"", b""), CA.certificate_der, is_server=False)


def test_only_tls_1_3_with_certificates_on_both_sides_is_spoken() -> None:
    context = tls_context(credential_of(ALICE), CA.certificate_der, is_server=True)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.num_tickets == 0
