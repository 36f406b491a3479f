"""Bans by a user: finding the peer that the user names, and recording its ban."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.recorded_bans import record_ban
from protocol.errors import ConfigError, UsageError
from protocol.identity.names import peer_name
from protocol.ids import PeerId

if TYPE_CHECKING:
    from protocol.identity.identity import Signer
    from protocol.run.manifest import RunManifest


def find_peer(admitted: Sequence[PeerId], who: str) -> PeerId:
    """The admitted peer with this peer id, or with this name as the status page shows it.

    Raises:
        UsageError: no peer or more than one has this name.
    """
    found = [peer for peer in admitted if who in (peer, peer_name(peer))]
    if not found:
        raise UsageError(
            f"nobody called {who} was ever admitted to this run", "a peer id or name", "potluck peers lists them"
        )
    if len(found) > 1:
        raise UsageError(f"{len(found)} peers are called {who}", "one of them", f"give the peer id: {', '.join(found)}")
    return found[0]


def ban_peer(ledger: Ledger, manifest: RunManifest, host: Signer, who: str, reason: str, *, now_unix_s: float) -> str:
    """Ban a peer permanently. Returns one line for the user. A running host refuses the peer from its next call on, and informs all
    others.

    Raises:
        UsageError: no peer or more than one has this name.
        ConfigError: the reason is invalid, the key is not that of this run's host, or there are too many bans.
        StorageError: the ledger cannot be written; nobody was banned.
    """
    if host.public_key.hex() != manifest.host_public_key:
        raise ConfigError("an identity that did not open this run", "the host's own", "restore the run's folder")
    peer = find_peer(ledger.peers(), who)
    if ledger.is_banned(peer):
        return f"{peer_name(peer)} ({peer}) is banned already"
    record_ban(ledger, manifest.run_id, host, peer, reason, now_unix_s=now_unix_s)
    return (
        f"banned {peer_name(peer)} ({peer}); the other peers hear of it with their next report, and it cannot come back"
    )
