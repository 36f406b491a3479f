"""Options of the peer-to-peer network: listening addresses, bootstrap addresses and admission."""

from __future__ import annotations

from pathlib import Path

from averaging.network.direct.direct import DirectOptions
from averaging.network.direct.tls_identity import TlsCredential, credential_check
from averaging.network.libp2p.libp2p_network import NetworkOptions
from averaging.network.libp2p.p2pd import P2pdOptions
from averaging.network.seams.directory import member_record_rule
from averaging.network.seams.interfaces import Clock
from peer.membership.addresses import announced, bulk_port, listening
from peer.membership.credential_cache import CREDENTIAL_CHANNEL, CredentialCache
from peer.membership.joining import Membership
from peer.settings.config import PeerConfig
from protocol.identity.identity import Verifier


def network_options(
    config: PeerConfig,
    identity_file: Path,
    membership: Membership,
    ca_certificate_der: bytes,
    roster: CredentialCache,
    verifier: Verifier,
    clock: Clock,
    *,
    is_outbound_only: bool,
) -> NetworkOptions:
    """Options that admit members only. A peer without a credential of the run may ask for ours, and nothing else.

    Raises:
        ConfigError: as `announced`.
        MachineError: as `listening`.
    """
    return NetworkOptions(
        p2pd=P2pdOptions(
            identity_file=identity_file,
            listen=listening(config),
            announce=announced(config),
            accepts_inbound=not config.no_listen,
            relays=host_addresses(membership),
            is_hidden=is_outbound_only,
        ),
        record_rule=member_record_rule(
            verifier, membership.run_id, ca_certificate_der, roster.judged_as_of_s, roster.is_banned
        ),
        initial_peers=membership.saved.ways_in,
        admits=roster.admits,
        open_channels=frozenset({CREDENTIAL_CHANNEL}),
        upload_bytes_per_s=float(config.upload_bytes_per_s) or None,
        direct=_direct(config, membership, ca_certificate_der, roster, clock, is_outbound_only=is_outbound_only),
    )


def host_addresses(membership: Membership) -> tuple[str, ...]:
    """The multiaddresses of the host's bootstrap node, which relays."""
    return tuple(address for address in membership.saved.ways_in if address.endswith(f"/p2p/{membership.coordinator}"))


def _direct(
    config: PeerConfig,
    membership: Membership,
    ca_certificate_der: bytes,
    roster: CredentialCache,
    clock: Clock,
    *,
    is_outbound_only: bool,
) -> DirectOptions | None:
    """Options for direct bulk streams. A peer that takes no connections still dials. Old peers may have saved no key for their
    credential; without it all bulk goes over libp2p.
    """
    if not roster.own_tls_key_pem:
        return None
    port, may_take_another = bulk_port(config)
    return DirectOptions(
        credential=lambda: TlsCredential(roster.own_credential, roster.own_tls_key_pem),
        ca_certificate_der=ca_certificate_der,
        check=credential_check(
            ca_certificate_der, membership.run_id, clock.unix_s, roster.judged_as_of_s, roster.is_banned
        ),
        listen_host=None if config.no_listen or is_outbound_only else config.listen_host,
        listen_port=port,
        may_take_another=may_take_another,
        listed=roster.bulk_addresses,
    )
