"""Addresses that a peer keeps over restarts."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from averaging.network.seams.interfaces import Network
from peer.membership.kept_addresses import FILE_NAME, keep, keep_addresses, listening_port, read_kept, with_kept
from peer.settings.config import PeerConfig
from tests.ports import free_port


def _config(folder: Path, **given: object) -> PeerConfig:
    return PeerConfig(state_dir=folder, listen_host="127.0.0.1", **given)  # type: ignore[arg-type]


def test_ports_and_name_of_the_last_start_are_taken_again(tmp_path: Path) -> None:
    port, page = free_port(), free_port()
    given = _config(tmp_path, listen_port=port, announce_host="box.example.org")
    keep(given, (f"/dns/box.example.org/tcp/{port}/p2p/me",), 0, page)
    again = with_kept(_config(tmp_path))
    assert (again.listen_port, again.http_port, again.announce_host) == (port, page, "box.example.org")
    assert with_kept(_config(tmp_path, announce_host="")).announce_host == ""
    other = with_kept(_config(tmp_path, listen_port=4001, http_port=4003, announce_host="other.example"))
    assert (other.listen_port, other.http_port, other.announce_host) == (4001, 4003, "other.example")


def test_port_of_weights_and_data_is_taken_again_but_not_beside_a_port_that_the_owner_gives(tmp_path: Path) -> None:
    port, bulk = free_port(), free_port()
    keep(_config(tmp_path), (f"/ip4/127.0.0.1/tcp/{port}/p2p/me",), bulk, 7)
    again = with_kept(_config(tmp_path))
    assert (again.listen_port, again.bulk_port) == (port, bulk)
    assert with_kept(_config(tmp_path, bulk_port=0)).bulk_port == bulk
    assert with_kept(_config(tmp_path, listen_port=port)).bulk_port is None, "the port after it, as ever"
    assert with_kept(_config(tmp_path, bulk_port=4002)).bulk_port == 4002


def test_file_of_an_earlier_release_names_no_port_of_weights_and_data(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / FILE_NAME).write_text(
        f'{{"announce_host": "", "listen_port": {port}, "http_port": 0}}', encoding="utf8"
    )
    again = with_kept(_config(tmp_path))
    assert (again.listen_port, again.bulk_port) == (port, None)


def test_kept_port_that_is_in_use_is_left_unless_a_name_is_announced_with_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        keep(_config(tmp_path), (f"/ip4/127.0.0.1/tcp/{port}/p2p/me",), port, port)
        fresh = with_kept(_config(tmp_path))
        assert (fresh.listen_port, fresh.bulk_port, fresh.http_port) == (0, None, 0)
        assert with_kept(_config(tmp_path, announce_host="box.example.org")).listen_port == port


def test_first_start_and_a_file_that_is_damaged_leave_the_settings_alone(tmp_path: Path) -> None:
    config = _config(tmp_path)
    assert with_kept(config) is config
    for text in ("{", '{"listen_port": 70000}', '{"announce_host": ".."}'):
        (tmp_path / FILE_NAME).write_text(text, encoding="utf8")
        assert with_kept(config) is config


def test_peer_that_does_not_listen_keeps_the_port_of_an_earlier_start(tmp_path: Path) -> None:
    keep(_config(tmp_path), ("/ip4/127.0.0.1/tcp/4001/p2p/me",), 4007, 7)
    keep(_config(tmp_path, no_listen=True), (), 0, 7)
    assert (read_kept(tmp_path).listen_port, read_kept(tmp_path).bulk_port) == (4001, 4007)
    assert listening_port(()) == 0


async def test_line_of_ports_leaves_the_status_page_to_its_address(tmp_path: Path) -> None:
    def network(*bulk_ports: int) -> Network:
        bulk = [SimpleNamespace(port=port) for port in bulk_ports]
        told = {"addresses": lambda: ("/ip4/127.0.0.1/tcp/4001/p2p/me",), "bulk_addresses": lambda: bulk}
        return cast(Network, SimpleNamespace(**told))

    line = await keep_addresses(_config(tmp_path), network(4002), 4003)
    assert line == "ports: TCP 4001 (peers), 4002 (weights and data)"
    hidden = await keep_addresses(_config(tmp_path, no_listen=True), network(), 4003)
    assert hidden == "ports: none, since it takes no connections"
