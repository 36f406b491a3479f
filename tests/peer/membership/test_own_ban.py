"""A banned peer is told of its ban from its own files, before anything slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.membership.own_ban import FILE_NAME, own_ban
from peer.membership.saved_membership import remember_last_run
from peer.session.fetch_model import fetch_model
from peer.settings.config import PeerConfig
from peer.status.local_view import read_daemon
from protocol.errors import RefusedError
from protocol.identity.identity_file import open_identity
from protocol.identity.revocation import Revocation, join_entries, seal_revocation
from protocol.ids import PeerId
from tests.coordinator.chain_world import HOST
from tests.peer.holdings.test_own_model import keep_run, tiny_run


def _ban(folder: Path, peer: PeerId) -> None:
    entry = seal_revocation(HOST, tiny_run().run_id, Revocation(peer, "sends noise", 1_700_000_000, 1))
    (folder / FILE_NAME).write_bytes(join_entries([entry]))


def test_own_ban_is_read_from_the_signed_entries_and_told_by_the_status_and_a_fetch(tmp_path: Path) -> None:
    folder = keep_run(tmp_path, tiny_run())
    remember_last_run(folder)
    with open_identity(tmp_path / "identity") as held:
        me = held.identity.peer_id
    assert own_ban(tmp_path, folder) is None
    _ban(folder, HOST.peer_id)
    assert own_ban(tmp_path, folder) is None
    _ban(folder, me)
    ban = own_ban(tmp_path, folder)
    assert ban is not None
    assert ban.one_line().startswith("the host banned this peer from the run: sends noise")
    assert "the host banned this peer" in read_daemon(tmp_path).note
    assert "start it with" not in read_daemon(tmp_path).note
    with pytest.raises(RefusedError, match="the host banned this peer from the run: sends noise"):
        fetch_model(PeerConfig(state_dir=tmp_path), "", "", lambda progress: None)
    (folder / FILE_NAME).write_bytes(b"damaged")
    assert own_ban(tmp_path, folder) is None
