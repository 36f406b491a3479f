"""Credentials: the run's certificate authority, a peer's identity-signed request, and the X.509 leaf that answers it.

The CA's key is Ed25519, TLS leaves are P-256: gRPC refuses Ed25519 leaves and takes a P-256 leaf under an Ed25519 CA. A CSR signed
by its P-256 key does not bind the identity, so the identity signs the CSR in an envelope.
"""

from __future__ import annotations

import functools
import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protocol.errors import ConfigError, RefusedError, RemoteProtocolError
from protocol.identity.envelope import open_envelope, seal
from protocol.identity.identity import Identity, Signer, Verifier
from protocol.identity.standing import PeerStanding, standing_in, standing_uris
from protocol.ids import PeerId, RunId

REQUEST_DOMAIN: Final = "potluck csr"
BACKDATE_S: Final = 600
"""Certificates begin ten minutes early: clocks differ."""
CA_DAYS: Final = 3650
_SCHEME: Final = "potluck:peer:"
_RUN_SCHEME: Final = "potluck:run:"
_REQUEST_LIFE_MS: Final = 300_000
MAX_REMEMBERED: Final = 8192
"""Credentials in the cache of checked issuers, under a kilobyte each: those of the largest run whose peers all know each other."""


@dataclass(frozen=True, slots=True)
class CredentialRequest:
    """A checked request: the peer that asks, and its P-256 key."""

    peer_id: PeerId
    csr: x509.CertificateSigningRequest


def make_tls_key() -> ec.EllipticCurvePrivateKey:
    """A fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    """The private key in PEM, unencrypted: for files of mode 0600 and for gRPC."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_request(signer: Signer, run_id: RunId, tls_key: ec.EllipticCurvePrivateKey, now_unix_s: float) -> bytes:
    """A CSR for `tls_key`, signed by the identity."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, signer.peer_id)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(tls_key, hashes.SHA256())
    expires_ms = int(now_unix_s * 1000) + _REQUEST_LIFE_MS
    return seal(signer, REQUEST_DOMAIN, run_id, 0, expires_ms, csr.public_bytes(Encoding.DER))


def open_request(data: bytes, *, verifier: Verifier, run_id: RunId, now_unix_s: float) -> CredentialRequest:
    """Check a request.

    Raises:
        RemoteProtocolError: a bad signature on either layer, another run, expired, or not a P-256 key.
    """
    envelope = open_envelope(
        data, verifier=verifier, domain=REQUEST_DOMAIN, run_id=run_id, now_unix_ms=int(now_unix_s * 1000)
    )
    try:
        csr = x509.load_der_x509_csr(envelope.payload)
        key = csr.public_key()
        is_good = csr.is_signature_valid
    except (ValueError, TypeError) as error:
        raise RemoteProtocolError(f"a certificate request that cannot be read ({error})", "a P-256 request") from error
    if not is_good or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RemoteProtocolError("a certificate request with another key or a bad signature", "a P-256 request")
    return CredentialRequest(envelope.sender, csr)


class CertificateAuthority:
    """The run's CA."""

    def __init__(self, key: Ed25519PrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self.certificate = certificate

    @property
    def certificate_der(self) -> bytes:
        """The CA's certificate, as the invite carries it."""
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def signer(self) -> Identity:
        """The CA's key, for what the run's authority signs besides credentials. The domain of an envelope tells one from the other."""
        return Identity(self._key.private_bytes_raw())

    def issue(
        self,
        request: CredentialRequest,
        run_id: RunId,
        *,
        now_unix_s: float,
        days: float,
        serial: int,
        standing: PeerStanding = PeerStanding.KEEPER,
    ) -> bytes:
        """A credential (DER): this peer may take part in this run, with this standing, until it ends."""
        uris = [f"{_SCHEME}{request.peer_id}", f"{_RUN_SCHEME}{run_id.hex()}", *standing_uris(standing)]
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        names.append(x509.DNSName(f"{request.peer_id.lower()}.peer.potluck"))
        builder = self._leaf(request.peer_id[:64], names, now_unix_s, days, serial)
        return builder.public_key(request.csr.public_key()).sign(self._key, None).public_bytes(Encoding.DER)

    def issue_own(
        self, peer_id: PeerId, run_id: RunId, *, now_unix_s: float, days: int = CA_DAYS
    ) -> tuple[bytes, bytes]:
        """The credential (DER) of the CA's holder, and its TLS key (PEM)."""
        key = make_tls_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, peer_id)])
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
        serial = x509.random_serial_number()
        asked = CredentialRequest(peer_id, request)
        return self.issue(asked, run_id, now_unix_s=now_unix_s, days=days, serial=serial), key_pem(key)

    def issue_server(self, hosts: tuple[str, ...], *, now_unix_s: float, days: int = CA_DAYS) -> tuple[bytes, bytes]:
        """Key and certificate chain (PEM) of the coordinator's port, valid for these host names and addresses."""
        key = make_tls_key()
        builder = self._leaf(
            "potluck coordinator", [_host_name(h) for h in hosts], now_unix_s, days, x509.random_serial_number()
        )
        leaf = builder.public_key(key.public_key()).sign(self._key, None)
        return key_pem(key), leaf.public_bytes(Encoding.PEM) + self.certificate.public_bytes(Encoding.PEM)

    def _leaf(
        self, subject: str, names: list[x509.GeneralName], now_unix_s: float, days: float, serial: int
    ) -> x509.CertificateBuilder:
        begin = datetime.fromtimestamp(now_unix_s - BACKDATE_S, UTC)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(self.certificate.subject)
            .serial_number(serial)
            .not_valid_before(begin)
            .not_valid_after(begin + timedelta(seconds=BACKDATE_S, days=days))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def make_ca(seed: bytes, *, now_unix_s: float) -> CertificateAuthority:
    """The CA whose key is `seed` (32 secret bytes). Its subject differs from every leaf's, or the leaf would count as self-signed."""
    if len(seed) != 32:
        raise ConfigError(f"a CA seed of {len(seed)} bytes", "32 bytes")
    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "potluck run authority")])
    begin = datetime.fromtimestamp(now_unix_s - BACKDATE_S, UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        # Always 20 bytes: an invite carries it (protocol/identity/invite.py), and the line should be as short as it can be.
        .serial_number(x509.random_serial_number() | 1 << 158)
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    return CertificateAuthority(key, certificate)


def load_ca(seed: bytes, certificate_der: bytes) -> CertificateAuthority:
    """The CA from its stored parts.

    Raises:
        ConfigError: the certificate does not belong to the key.
    """
    key = Ed25519PrivateKey.from_private_bytes(seed)
    certificate = x509.load_der_x509_certificate(certificate_der)
    public = certificate.public_key()
    if not isinstance(public, Ed25519PublicKey) or public.public_bytes_raw() != key.public_key().public_bytes_raw():
        raise ConfigError("a CA certificate of another key", "the run's own", "restore the run's folder from a backup")
    return CertificateAuthority(key, certificate)


@dataclass(frozen=True, slots=True)
class Credential:
    """A checked credential."""

    peer_id: PeerId
    not_before_unix_s: float
    not_after_unix_s: float
    serial: int
    standing: PeerStanding = PeerStanding.KEEPER


def credential_ends_unix_s(der: bytes) -> float:
    """When a credential ends, whichever CA issued it.

    Raises:
        RefusedError: the bytes are no certificate.
    """
    try:
        return x509.load_der_x509_certificate(der).not_valid_after_utc.timestamp()
    except ValueError as error:
        raise RefusedError("a credential that cannot be read", "one of this run", "join the run again") from error


def public_key_in(der: bytes) -> bytes:
    """The Ed25519 key of a certificate, 32 bytes.

    Raises:
        RefusedError: the bytes are no certificate of such a key.
    """
    try:
        key = x509.load_der_x509_certificate(der).public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise RefusedError("an authority that cannot be read", "the certificate in the run's invite") from error
    if not isinstance(key, Ed25519PublicKey):
        raise RefusedError("an authority with another kind of key", "an Ed25519 key")
    return key.public_bytes_raw()


def named_peer(der: bytes) -> PeerId:
    """The peer that a credential names; nothing is checked.

    Raises:
        RefusedError: it names none, or more than one.
    """
    try:
        leaf = x509.load_der_x509_certificate(der)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise RefusedError("a credential that cannot be read", "one of this run", "join the run again") from error
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    peers = [uri.removeprefix(_SCHEME) for uri in uris if uri.startswith(_SCHEME)]
    if len(peers) != 1:
        raise RefusedError(f"a credential of {len(peers)} peers", "one of one peer", "join the run again")
    return PeerId(peers[0])


class _Issued(NamedTuple):
    """The content of a certificate that a CA issued."""

    uris: frozenset[str]
    not_before_unix_s: float
    not_after_unix_s: float
    serial: int


@functools.lru_cache(maxsize=MAX_REMEMBERED)
def _issued(der: bytes, ca_der: bytes) -> _Issued:
    """Cached: the directory shows each member's credential at every poll, several times. Raises RefusedError."""
    try:
        leaf = x509.load_der_x509_certificate(der)
        leaf.verify_directly_issued_by(x509.load_der_x509_certificate(ca_der))
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise RefusedError(
            "a credential that this run's CA did not issue", "one of this run", "join the run again"
        ) from error
    return _Issued(
        frozenset(names.get_values_for_type(x509.UniformResourceIdentifier)),
        leaf.not_valid_before_utc.timestamp(),
        leaf.not_valid_after_utc.timestamp(),
        leaf.serial_number,
    )


def issued_to(der: bytes, ca_der: bytes, *, peer_id: PeerId, run_id: RunId) -> bool:
    """Whether the CA issued this credential to this peer of this run, whenever that was.

    Raises:
        RefusedError: another CA issued it, or it cannot be read.
    """
    uris = _issued(der, ca_der).uris
    return f"{_SCHEME}{peer_id}" in uris and f"{_RUN_SCHEME}{run_id.hex()}" in uris


def issued_standing(der: bytes, ca_der: bytes) -> PeerStanding:
    """The standing that a credential of this CA gives its peer.

    Raises:
        RefusedError: another CA issued it, or it cannot be read.
    """
    return standing_in(_issued(der, ca_der).uris)


def check_credential(der: bytes, ca_der: bytes, *, peer_id: PeerId, run_id: RunId, now_unix_s: float) -> Credential:
    """Check that `der` lets `peer_id` take part in the run now.

    Raises:
        RefusedError: another CA, peer or run, or outside its time; a clock that is far off is named as the likely cause.
    """
    leaf = _issued(der, ca_der)
    if not issued_to(der, ca_der, peer_id=peer_id, run_id=run_id):
        raise RefusedError("a credential of another peer or run", f"one for {peer_id}", "join the run again")
    begin, end = leaf.not_before_unix_s, leaf.not_after_unix_s
    if now_unix_s < begin:
        raise RefusedError(
            f"a credential that begins in {(begin - now_unix_s) / 60:.0f} minutes",
            "one that is valid now",
            "set this machine's clock",
        )
    if now_unix_s > end:
        raise RefusedError(
            f"a credential that ended {(now_unix_s - end) / 3600:.1f} hours ago",
            "one that is valid now",
            "join the run again",
        )
    return Credential(peer_id, begin, end, leaf.serial, standing_in(leaf.uris))
