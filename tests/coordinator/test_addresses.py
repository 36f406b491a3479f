"""Ports kept over restarts, addresses for invites."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.addresses import multiaddress, settle_addresses
from coordinator.config import HostConfig
from coordinator.ledger import open_ledger
from protocol.errors import MachineError


def test_free_ports_are_taken_once_and_kept(tmp_path: Path) -> None:
    config = HostConfig(state_dir=tmp_path, listen_host="127.0.0.1")
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        first = settle_addresses(config, ledger)
        assert settle_addresses(config, ledger) == first
        assert first.grpc_address == f"127.0.0.1:{first.grpc_port}"
        assert first.p2p_listen == (f"/ip4/127.0.0.1/tcp/{first.p2p_port}",)
        assert first.p2p_announce == ()
        moved = settle_addresses(config.model_copy(update={"grpc_port": 4001}), ledger)
        assert (moved.grpc_port, moved.p2p_port) == (4001, first.p2p_port)


def test_announced_name_goes_into_invites_and_multiaddresses(tmp_path: Path) -> None:
    config = HostConfig(state_dir=tmp_path, announce_host="run.example.org", grpc_port=1, p2p_port=2)
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        addresses = settle_addresses(config, ledger)
    assert addresses.grpc_address == "run.example.org:1"
    assert addresses.p2p_announce == ("/dns4/run.example.org/tcp/2",)


def test_address_of_another_machine_is_one_clear_error(tmp_path: Path) -> None:
    config = HostConfig(state_dir=tmp_path, listen_host="192.0.2.1")
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger, pytest.raises(MachineError, match="cannot listen on"):
        settle_addresses(config, ledger)


def test_multiaddresses_tell_addresses_from_names() -> None:
    assert multiaddress("::1", 5) == "/ip6/::1/tcp/5"
    assert multiaddress("10.0.0.1", 5) == "/ip4/10.0.0.1/tcp/5"
