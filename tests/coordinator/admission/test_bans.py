"""The peers that a ban covers, and the conditions of a ban."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.admission import bans
from coordinator.admission.bans import ban_peer, find_peer
from coordinator.ledger import recorded_bans
from coordinator.ledger.ledger import Applicant
from protocol.errors import ConfigError, UsageError
from protocol.identity.identity import Identity
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from tests.coordinator.chain_world import HOST, PEERS
from tests.coordinator.host_world import HostWorld, open_host
from tests.coordinator.ledger.test_ledger import with_invite

ADMITTED = [peer.peer_id for peer in PEERS]


def test_a_peer_is_found_by_its_id_and_by_its_name() -> None:
    for peer in ADMITTED:
        assert find_peer(ADMITTED, peer) == find_peer(ADMITTED, peer_name(peer)) == peer


def test_a_name_that_nobody_has_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"nobody called 12D3KooWx.*potluck peers"):
        find_peer(ADMITTED, "12D3KooWx")
    monkeypatch.setattr(bans, "peer_name", lambda _: "same name")
    with pytest.raises(UsageError, match=rf"3 peers are called same name.*{ADMITTED[0]}"):
        find_peer(ADMITTED, "same name")


def _admit(host: HostWorld, peer: PeerId) -> None:
    host.ledger.add_invite(b"i" * 32, max_uses=1, created_unix_s=0, expires_unix_s=1)
    host.ledger.admit(Applicant(peer, bytes(32), b"i" * 32), with_invite, lambda _: b"", now_unix_s=1)


@pytest.mark.parametrize("reason", ["two\nlines", "x" * 201])
def test_a_reason_that_cannot_be_kept_bans_nobody(tmp_path: Path, reason: str) -> None:
    with open_host(tmp_path) as host:
        _admit(host, ADMITTED[0])
        with pytest.raises(ConfigError, match="a reason of"):
            ban_peer(host.ledger, host.manifest, HOST, ADMITTED[0], reason, now_unix_s=5.0)
        assert host.ledger.is_admitted(ADMITTED[0])


def test_another_key_than_the_hosts_signs_no_ban(tmp_path: Path) -> None:
    with open_host(tmp_path) as host:
        _admit(host, ADMITTED[0])
        with pytest.raises(ConfigError, match="did not open this run"):
            ban_peer(host.ledger, host.manifest, Identity(b"x" * 32), ADMITTED[0], "", now_unix_s=5.0)
        assert host.ledger.is_admitted(ADMITTED[0])


def test_more_bans_than_anybody_keeps_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_bans, "MAX_REVOCATIONS", 0)
    with open_host(tmp_path) as host:
        _admit(host, ADMITTED[0])
        with pytest.raises(ConfigError, match="ban number 1"):
            ban_peer(host.ledger, host.manifest, HOST, ADMITTED[0], "", now_unix_s=5.0)
        assert host.ledger.is_admitted(ADMITTED[0])
