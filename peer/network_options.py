"""What the peer-to-peer network is opened with: where we listen, whom we dial first, and who is let in."""

from __future__ import annotations

from pathlib import Path

from averaging.network.directory import member_record_rule
from averaging.network.libp2p_network import NetworkOptions
from averaging.network.p2pd import P2pdOptions
from peer.addresses import announced, multiaddress
from peer.config import PeerConfig
from peer.joining import Membership
from peer.roster import CREDENTIAL_CHANNEL, Roster
from protocol.identity import Verifier


def network_options(
    config: PeerConfig,
    identity_file: Path,
    membership: Membership,
    ca_certificate_der: bytes,
    roster: Roster,
    verifier: Verifier,
) -> NetworkOptions:
    """Members only: who has shown no credential of the run may ask for ours, and nothing else.

    Raises:
        ConfigError: as `announced`.
    """
    return NetworkOptions(
        p2pd=P2pdOptions(
            identity_file=identity_file,
            listen=(multiaddress(config.listen_host, config.listen_port),),
            announce=announced(config),
            accepts_inbound=not config.no_listen,
        ),
        record_rule=member_record_rule(
            verifier, membership.run_id, ca_certificate_der, roster.judged_as_of_s, roster.is_banned
        ),
        initial_peers=membership.saved.ways_in,
        admits=roster.admits,
        open_channels=frozenset({CREDENTIAL_CHANNEL}),
        upload_bytes_per_s=float(config.upload_bytes_per_s) or None,
    )
