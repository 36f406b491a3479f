"""Ports kept over restarts, addresses for invites."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from coordinator.admission import addresses
from coordinator.admission.addresses import (
    HostAddresses,
    keep_http_port,
    kept_http_port,
    public_url,
    reach_note,
    settle_addresses,
    wider_note,
)
from coordinator.ledger.ledger import open_ledger
from coordinator.policy.config import HostConfig
from coordinator.run.start_command import UNKNOWN, StartCommand
from protocol.errors import ConfigError, MachineError
from tests.ports import free_port


def test_free_ports_are_taken_once_and_kept(tmp_path: Path) -> None:
    config = HostConfig(state_dir=tmp_path, listen_host="127.0.0.1")
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        first = settle_addresses(config, ledger)
        assert settle_addresses(config, ledger) == first
        assert first.grpc_addresses == (f"127.0.0.1:{first.grpc_port}",)
        assert first.p2p_listen == (f"/ip4/127.0.0.1/tcp/{first.p2p_port}",)
        assert first.p2p_announce == ()
        other_port = free_port()
        moved = settle_addresses(config.model_copy(update={"grpc_port": other_port}), ledger)
        assert (moved.grpc_port, moved.p2p_port) == (other_port, first.p2p_port)
        assert settle_addresses(config, ledger) == moved


@pytest.mark.parametrize("name", ["grpc_port", "p2p_port"])
def test_port_in_use_is_named_with_its_flag_and_the_old_ports_stay(tmp_path: Path, name: str) -> None:
    config = HostConfig(state_dir=tmp_path, listen_host="127.0.0.1")
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger, socket.socket() as other:
        first = settle_addresses(config, ledger)
        # As libp2p listens: another one of the same user could bind the port too, and would.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        flag = name.replace("_", "-")
        with pytest.raises(MachineError, match=f"cannot listen on 127.0.0.1:{port} .*in use.*--{flag}"):
            settle_addresses(config.model_copy(update={name: port}), ledger)
        assert settle_addresses(config, ledger) == first


def test_remembered_port_in_use_says_that_invites_name_it(tmp_path: Path) -> None:
    config = HostConfig(state_dir=tmp_path, listen_host="127.0.0.1")
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger, socket.socket() as other:
        first = settle_addresses(config, ledger)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", first.grpc_port))
        other.listen()
        with pytest.raises(MachineError, match="free it: invites name it"):
            settle_addresses(config, ledger)


def test_status_page_keeps_its_port_where_it_is_free(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger, socket.socket() as other:
        assert kept_http_port(ledger, "127.0.0.1") == 0
        port = free_port()
        keep_http_port(ledger, port)
        assert kept_http_port(ledger, "127.0.0.1") == port
        other.bind(("127.0.0.1", port))
        other.listen()
        assert kept_http_port(ledger, "127.0.0.1") == 0
        assert kept_http_port(ledger, "nowhere.invalid") == 0


def test_public_page_keeps_a_port_of_its_own(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        own, public = free_port(), free_port()
        keep_http_port(ledger, own)
        keep_http_port(ledger, public, is_public=True)
        assert kept_http_port(ledger, "127.0.0.1") == own
        assert kept_http_port(ledger, "127.0.0.1", is_public=True) == public


def test_one_port_for_two_services_is_a_wrong_value_and_both_flags_are_named(tmp_path: Path) -> None:
    port = free_port()
    config = HostConfig(state_dir=tmp_path, listen_host="127.0.0.1", grpc_port=port, p2p_port=port)
    told = "two ports; give another with --grpc-port or --p2p-port"
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger, pytest.raises(ConfigError, match=told):
        settle_addresses(config, ledger)


def test_a_free_port_that_the_system_gives_twice_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = free_port(), free_port()
    given = iter((one, one, one, other))
    monkeypatch.setattr(addresses, "_free_port", lambda *_: next(given))
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        found = settle_addresses(HostConfig(state_dir=tmp_path, listen_host="127.0.0.1"), ledger)
    assert (found.grpc_port, found.p2p_port) == (one, other)


def test_announced_name_goes_into_invites_and_multiaddresses(tmp_path: Path) -> None:
    config = HostConfig(state_dir=tmp_path, announce_host="run.example.org")
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        found = settle_addresses(config, ledger)
    assert found.grpc_addresses == (f"run.example.org:{found.grpc_port}",)
    assert found.p2p_announce == (f"/dns/run.example.org/tcp/{found.p2p_port}",)


def test_address_of_another_machine_is_one_clear_error(tmp_path: Path) -> None:
    config = HostConfig(state_dir=tmp_path, listen_host="192.0.2.1")
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger, pytest.raises(MachineError, match="cannot listen on"):
        settle_addresses(config, ledger)


@pytest.mark.parametrize(
    ("listen", "told"), [("0.0.0.0", "fd00:9::2"), ("::1", "127.0.0.2"), ("127.0.0.2", "127.0.0.3")]
)
def test_announced_address_on_which_nobody_listens_is_refused_unless_it_may_be_a_tunnels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listen: str, told: str
) -> None:
    monkeypatch.setattr(addresses, "own_addresses", lambda: {"eth0": ("127.0.0.1", "10.9.0.2", "fd00:9::2")})
    config = HostConfig(state_dir=tmp_path, listen_host=listen, announce_host=told)
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        if listen != "0.0.0.0":
            assert settle_addresses(config, ledger).public_hosts == (told,)
            return
        with pytest.raises(ConfigError, match=r"announced as fd00:9::2, while it listens on 0.0.0.0.*--listen-host ::"):
            settle_addresses(config, ledger)
        assert ledger.get("grpc port") is None


def test_name_with_records_of_the_other_kind_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "own_addresses", lambda: {"eth0": ("10.9.0.2",)})
    monkeypatch.setattr(addresses, "addresses_of", lambda name: ("fd00:9::2",))
    config = HostConfig(state_dir=tmp_path, announce_host="v6only.test")
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger, pytest.raises(ConfigError, match="IPv6, on which"):
        settle_addresses(config, ledger)


def test_announced_name_is_kept_over_restarts_until_another_is_given(tmp_path: Path) -> None:
    given = HostConfig(state_dir=tmp_path, listen_host="127.0.0.1", announce_host="run.example.org")
    plain = HostConfig(state_dir=tmp_path, listen_host="127.0.0.1")
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        assert settle_addresses(plain, ledger).public_hosts == ("127.0.0.1",)
        first = settle_addresses(given, ledger)
        assert settle_addresses(plain, ledger) == first
        forgotten = settle_addresses(plain.model_copy(update={"announce_host": ""}), ledger)
        assert forgotten.public_hosts == settle_addresses(plain, ledger).public_hosts == ("127.0.0.1",)


def test_host_on_all_addresses_listens_on_and_announces_both_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "outward_addresses", lambda: ("10.9.0.2", "fd00:9::2"))
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        found = settle_addresses(HostConfig(state_dir=tmp_path), ledger)
        port = found.p2p_port
        assert found.p2p_listen == (f"/ip4/0.0.0.0/tcp/{port}", f"/ip6/::/tcp/{port}")
        assert found.p2p_announce == (f"/ip4/10.9.0.2/tcp/{port}", f"/ip6/fd00:9::2/tcp/{port}")
        assert found.grpc_addresses == (f"10.9.0.2:{found.grpc_port}", f"[fd00:9::2]:{found.grpc_port}")
        assert found.bulk_port == port + 1
        of_ipv4 = settle_addresses(HostConfig(state_dir=tmp_path, listen_host="0.0.0.0"), ledger)
        assert of_ipv4.public_hosts == ("10.9.0.2",)


def test_chosen_port_whose_successor_is_taken_is_refused(tmp_path: Path) -> None:
    config = HostConfig(state_dir=tmp_path, listen_host="127.0.0.1")
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger, socket.socket() as other:
        first = settle_addresses(config, ledger)
        other.bind(("127.0.0.1", first.bulk_port))
        other.listen()
        with pytest.raises(MachineError, match=f"weights and data: cannot listen on 127.0.0.1:{first.bulk_port}"):
            settle_addresses(config.model_copy(update={"p2p_port": first.p2p_port}), ledger)
        assert settle_addresses(config, ledger) == first


@pytest.mark.parametrize(
    ("host", "who"),
    [
        ("192.168.1.5", "only its own network reaches"),
        ("10.0.0.7", "only its own network reaches"),
        ("100.64.3.2", "only its own network reaches"),
        ("fe80::1", "only its own network reaches"),
        ("127.0.0.1", "only this machine reaches"),
        ("localhost", "only this machine reaches"),
        ("8.8.8.8", ""),
        ("train.example.org", ""),
    ],
)
def test_invite_that_volunteers_elsewhere_cannot_use_is_said_with_the_flag(host: str, who: str) -> None:
    note = reach_note(HostAddresses("::", ("0.0.0.0", "::"), (host,), 4600, 4601), UNKNOWN)
    assert who in note
    assert bool(note) == bool(who)
    assert ("--announce-host" in note) == bool(who)


@pytest.mark.parametrize(
    ("before", "now", "is_told"),
    [
        (("127.0.0.1:4600",), ("192.168.1.2", "fd00::2"), True),
        (("[fd00::2]:4600",), ("train.example.org",), True),
        (("192.168.1.2:4600",), ("127.0.0.1",), False),
        (("192.168.1.2:4600",), ("192.168.1.3",), False),
        ((), ("192.168.1.2",), False),
    ],
)
def test_start_that_more_people_can_reach_than_the_last_one_says_so(
    before: tuple[str, ...], now: tuple[str, ...], is_told: bool
) -> None:
    note = wider_note(before, HostAddresses("::", ("0.0.0.0", "::"), now, 4600, 4601), StartCommand(("mine.toml",)))
    assert ("more people can reach this host" in note) == is_told
    assert ("potluck host mine.toml --listen-host 127.0.0.1" in note) == (before == ("127.0.0.1:4600",))


@pytest.mark.parametrize(
    ("url", "host", "reported"),
    [
        ("http://0.0.0.0:80", "train.example.org", "http://train.example.org:80/"),
        ("http://[::]:80", "2001:db8::1", "http://[2001:db8::1]:80/"),
        ("http://127.0.0.1:80", "train.example.org", "http://127.0.0.1:80/"),
    ],
)
def test_public_page_is_told_by_the_address_that_others_reach(url: str, host: str, reported: str) -> None:
    assert public_url(url, host) == reported


def test_an_address_that_is_not_of_this_machine_is_mended_with_its_own_flag_and_no_port(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        settle_addresses(HostConfig(state_dir=tmp_path, listen_host="127.0.0.1"), ledger)
        with pytest.raises(MachineError) as error:
            settle_addresses(HostConfig(state_dir=tmp_path, listen_host="192.0.2.1"), ledger)
    assert "--listen-host" in error.value.remedy
    assert "port" not in error.value.remedy
