"""The run's credentials in TLS 1.3: both sides show theirs, and the credential names the peer id.

OpenSSL checks that the run's CA issued the certificate and that the other side holds its key. It does not check the validity time:
that is a rule of the run (a voter's credential stays valid while nobody can renew it), checked by `CheckCredential`.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from averaging.network.seams.directory import JudgedAsOf
from protocol.errors import ConfigError, RefusedError
from protocol.identity.credential import check_credential, named_peer
from protocol.ids import PeerId, RunId

_NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)
"""X509_V_FLAG_NO_CHECK_TIME, which Python's ssl module does not name."""

CheckCredential = Callable[[bytes], PeerId]
"""A presented credential (DER) -> the peer that it names. Raises RefusedError if it is not valid now."""


@dataclass(frozen=True, slots=True)
class TlsCredential:
    """Our own credential (DER) and the private key that it was issued for (PEM)."""

    certificate_der: bytes
    key_pem: bytes


def credential_check(
    ca_certificate_der: bytes,
    run_id: RunId,
    unix_s: Callable[[], float],
    judged_as_of: JudgedAsOf = lambda _, now_unix_s: now_unix_s,
    is_banned: Callable[[PeerId], bool] = lambda _: False,
) -> CheckCredential:
    """The rule of a run: issued by its CA, for this run, valid at the time that `judged_as_of` returns, and not banned."""

    def check(der: bytes) -> PeerId:
        peer = named_peer(der)
        if is_banned(peer):
            raise RefusedError(f"{peer} is banned from this run", "a peer in good standing")
        as_of_s = judged_as_of(peer, unix_s())
        return check_credential(der, ca_certificate_der, peer_id=peer, run_id=run_id, now_unix_s=as_of_s).peer_id

    return check


def tls_context(own: TlsCredential, ca_certificate_der: bytes, *, is_server: bool) -> ssl.SSLContext:
    """TLS 1.3 with certificates on both sides and without resumption, so that every connection shows its credential.

    Raises:
        ConfigError: our credential and its key do not belong together, or cannot be read.
    """
    context = _context(is_server=is_server)
    try:
        context.load_verify_locations(cadata=ca_certificate_der)
        with _as_file(own) as path:
            context.load_cert_chain(path)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"a credential that TLS does not take ({error})", "a credential and its key", "join the run again"
        ) from error
    if is_server:
        context.num_tickets = 0
    return context


def stranger_context(ca_certificate_der: bytes) -> ssl.SSLContext:
    """TLS 1.3 for a caller without a credential. It sees the other side's, and is then turned away.

    Raises:
        ConfigError: the CA certificate cannot be read.
    """
    context = _context(is_server=False)
    try:
        context.load_verify_locations(cadata=ca_certificate_der)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"a CA certificate that TLS does not take ({error})", "a whole invite") from error
    return context


def _context(*, is_server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the peer id is compared instead
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= _NO_CHECK_TIME
    return context


@contextmanager
def _as_file(own: TlsCredential) -> Iterator[str]:
    """A path from which OpenSSL reads key and certificate: a file in memory, or else a private temporary file."""
    data = own.key_pem + ssl.DER_cert_to_PEM_cert(own.certificate_der).encode()
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("credential")
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.name
