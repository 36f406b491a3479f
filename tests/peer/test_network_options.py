from __future__ import annotations

from pathlib import Path

import pytest
import trio.testing

from averaging.network.clocks import VirtualClock
from averaging.network.libp2p_network import NetworkOptions
from peer.config import PeerConfig
from peer.network_options import network_options
from peer.roster import CREDENTIAL_CHANNEL, Roster
from protocol.identity import Ed25519Verifier
from tests.peer.test_start_record import CA, HOST, RUN, UNIX_S, membership_of

Clock = trio.testing.MockClock


def _options(folder: Path, **changes: object) -> NetworkOptions:
    config = PeerConfig(state_dir=folder, listen_host="127.0.0.1").model_copy(update=changes)
    roster = Roster(RUN, CA.certificate_der, HOST.peer_id, b"", Ed25519Verifier(), VirtualClock(UNIX_S))
    return network_options(
        config, folder / "identity", membership_of(b"own"), CA.certificate_der, roster, Ed25519Verifier()
    )


async def test_a_stranger_may_ask_for_our_credential_and_for_nothing_else(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    assert _options(tmp_path).open_channels == {CREDENTIAL_CHANNEL}


@pytest.mark.parametrize("no_listen", [False, True])
async def test_who_does_not_listen_accepts_nobody(tmp_path: Path, no_listen: bool, autojump_clock: Clock) -> None:
    assert _options(tmp_path, no_listen=no_listen).p2pd.accepts_inbound is not no_listen


async def test_an_upload_without_a_bound_is_not_a_bound_of_nothing(tmp_path: Path, autojump_clock: Clock) -> None:
    assert _options(tmp_path, upload_bytes_per_s=0).upload_bytes_per_s is None
    assert _options(tmp_path, upload_bytes_per_s=1000).upload_bytes_per_s == 1000.0
