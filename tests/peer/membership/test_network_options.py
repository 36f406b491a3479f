from __future__ import annotations

from pathlib import Path

import pytest
import trio.testing

from averaging.network.direct.tls_identity import TlsCredential
from averaging.network.libp2p.libp2p_network import NetworkOptions
from peer.membership.credential_cache import CREDENTIAL_CHANNEL, CredentialCache
from peer.membership.network_options import network_options
from peer.settings.config import PeerConfig
from protocol.identity.verifier import Ed25519Verifier
from tests.peer.session.test_start_record import CA, HOST, RUN, UNIX_S, membership_of
from tests.virtual import VirtualClock

Clock = trio.testing.MockClock


def _options(folder: Path, **changes: object) -> NetworkOptions:
    return _opened(folder, **changes)[0]


def _opened(
    folder: Path, *, key: bytes = b"key", is_outbound_only: bool = False, **changes: object
) -> tuple[NetworkOptions, CredentialCache]:
    config = PeerConfig(state_dir=folder, listen_host="127.0.0.1").model_copy(update=changes)
    clock = VirtualClock(UNIX_S)
    roster = CredentialCache(RUN, CA.certificate_der, HOST.peer_id, b"first", Ed25519Verifier(), clock, None, key)
    options = network_options(
        config,
        folder / "identity",
        membership_of(b"own"),
        CA.certificate_der,
        roster,
        Ed25519Verifier(),
        clock,
        is_outbound_only=is_outbound_only,
    )
    return options, roster


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


async def test_bulk_is_taken_on_the_port_after_the_other_ones_unless_its_owner_chose(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    def port(**changes: object) -> tuple[int, bool]:
        direct = _options(tmp_path, **changes).direct
        assert direct is not None
        assert direct.listen_host == "127.0.0.1"
        return direct.listen_port, direct.may_take_another

    assert port() == (0, True)
    assert port(listen_port=4001) == (4002, True)
    assert port(listen_port=65535) == (0, True)
    assert port(listen_port=4001, bulk_port=7) == (7, False)
    assert port(listen_port=4001, bulk_port=0) == (0, False)


@pytest.mark.parametrize("changes", [{"no_listen": True}, {"is_outbound_only": True}])
async def test_who_takes_no_connections_takes_no_bulk_either_and_still_dials(
    tmp_path: Path, changes: dict[str, bool], autojump_clock: Clock
) -> None:
    direct = _opened(tmp_path, **changes)[0].direct
    assert direct is not None
    assert direct.listen_host is None


async def test_a_renewed_credential_is_shown_with_its_key_and_without_a_key_nothing_goes_direct(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    options, roster = _opened(tmp_path)
    assert options.direct is not None
    assert options.direct.credential() == TlsCredential(b"first", b"key")
    roster.show(b"second", b"another key")
    assert options.direct.credential() == TlsCredential(b"second", b"another key")
    assert _opened(tmp_path, key=b"")[0].direct is None
