from __future__ import annotations

import socket
from pathlib import Path

import pytest

from peer.membership import addresses
from peer.membership.addresses import announced, check_listen_address, listening
from peer.settings.config import PeerConfig
from protocol.errors import ConfigError, MachineError


def _config(**changes: object) -> PeerConfig:
    return PeerConfig(state_dir=Path("unused"), listen_host="127.0.0.1").model_copy(update=changes)


def test_peer_listens_on_ipv4_and_ipv6_on_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "listen_addresses", lambda host: ("127.0.0.1", "::1") if host == "::" else (host,))
    first, second = listening(_config(listen_host="::"))
    port = int(first.removeprefix("/ip4/127.0.0.1/tcp/"))
    assert port > 0
    assert second == f"/ip6/::1/tcp/{port}"
    assert listening(_config(listen_host="0.0.0.0")) == ("/ip4/0.0.0.0/tcp/0",)
    assert listening(_config(listen_host="::", listen_port=4001))[1] == "/ip6/::1/tcp/4001"


def test_announced_address_that_does_not_lead_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "own_addresses", lambda: {"eth0": ("10.9.0.2", "fd00:9::2")})
    with pytest.raises(ConfigError, match=r"announced as fd00:9::2, while it listens on 0.0.0.0.*--listen-host ::"):
        check_listen_address(_config(listen_host="0.0.0.0", announce_host="fd00:9::2"))
    check_listen_address(_config(listen_host="0.0.0.0", announce_host="198.51.100.7"))


def test_forwarded_port_is_announced_and_a_name_without_one_is_refused() -> None:
    assert announced(_config()) == ()
    assert announced(_config(announce_host="box.example.org", listen_port=4001)) == ("/dns/box.example.org/tcp/4001",)
    with pytest.raises(ConfigError, match=r"announce_host.*--listen-port"):
        announced(_config(announce_host="box.example.org"))


def test_port_in_use_is_named_with_its_flag_also_when_its_owner_would_share_it() -> None:
    with socket.socket() as other:
        # As libp2p listens: a second libp2p of the same user could bind the port too, and would.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(MachineError, match=f"cannot listen on 127.0.0.1:{port} .*in use.*--listen-port"):
            check_listen_address(_config(listen_port=port))
        check_listen_address(_config(listen_port=port, no_listen=True))
    check_listen_address(_config(listen_port=port))


@pytest.mark.parametrize("host", ["192.0.2.1", "no address"])
def test_address_that_is_not_ours_is_one_clear_error(host: str) -> None:
    with pytest.raises(MachineError, match="address of this machine"):
        check_listen_address(_config(listen_host=host))


def test_a_port_for_bulk_that_its_owner_chose_is_tried_too_and_is_another_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(MachineError, match=f"cannot listen on 127.0.0.1:{port} .*in use.*--bulk-port"):
            check_listen_address(_config(bulk_port=port))
        check_listen_address(_config(bulk_port=port, no_listen=True))
    with pytest.raises(ConfigError, match="two ports"):
        check_listen_address(_config(bulk_port=port, listen_port=port))
    check_listen_address(_config(bulk_port=0, listen_port=0))
