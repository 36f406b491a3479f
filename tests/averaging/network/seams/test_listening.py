"""Listening on all addresses of a machine, and finding those that others reach."""

from __future__ import annotations

import socket

import pytest

from averaging.network.seams import listening
from averaging.network.seams.listening import (
    addresses_of,
    bind_listeners,
    is_free,
    listen_addresses,
    outward_addresses,
)
from protocol.errors import MachineError


def test_all_addresses_are_those_of_the_kinds_that_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert listen_addresses("::")[:1] == ("0.0.0.0",)
    monkeypatch.setattr(listening, "has_ipv6", lambda: False)
    assert listen_addresses("::") == listen_addresses("") == ("0.0.0.0",)
    assert listen_addresses("0.0.0.0") == ("0.0.0.0",)
    assert listen_addresses("::1") == ("::1",)


def test_name_stands_for_its_addresses_and_an_unknown_one_is_named() -> None:
    assert "127.0.0.1" in listen_addresses("localhost")
    assert addresses_of("..") == ()
    with pytest.raises(MachineError, match=r"nowhere.invalid has no address"):
        listen_addresses("nowhere.invalid")


def test_one_port_is_taken_on_all_addresses_and_is_then_not_free() -> None:
    addresses = listen_addresses("::")
    sockets = bind_listeners(addresses, 0)
    try:
        (port,) = {each.getsockname()[1] for each in sockets}
        assert len(sockets) == len(addresses)
        assert not is_free(addresses, port)
        assert not is_free(addresses[:1], port)
    finally:
        for each in sockets:
            each.close()
    assert is_free(addresses, port)


def test_port_that_is_free_on_one_kind_only_is_left_alone() -> None:
    addresses = ("127.0.0.1", "127.0.0.2")
    with socket.socket() as other:
        other.bind(("127.0.0.2", 0))
        other.listen()
        port = other.getsockname()[1]
        assert is_free(addresses[:1], port)
        with pytest.raises(OSError, match="in use"):
            bind_listeners(addresses, port)
        assert is_free(addresses[:1], port)


def _machine(monkeypatch: pytest.MonkeyPatch, routed: dict[int, str], interfaces: dict[str, tuple[str, ...]]) -> None:
    monkeypatch.setattr(listening, "_routed", lambda family: routed.get(family, ""))
    monkeypatch.setattr(listening, "own_addresses", lambda: interfaces)


def test_machine_with_a_way_to_the_internet_has_the_addresses_of_that_way(monkeypatch: pytest.MonkeyPatch) -> None:
    lan = {"eth1": ("192.168.9.1",)}
    _machine(monkeypatch, {socket.AF_INET: "10.9.0.2", socket.AF_INET6: "fd00:9::2"}, lan)
    assert outward_addresses() == ("10.9.0.2", "fd00:9::2")
    _machine(monkeypatch, {socket.AF_INET6: "fd00:9::2"}, lan)
    assert outward_addresses() == ("fd00:9::2",)


def test_local_network_without_a_router_gives_the_address_of_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    containers = {"docker0": ("172.17.0.1",), "lo": ("127.0.0.1", "::1")}
    _machine(monkeypatch, {}, containers | {"eth0": ("fe80::1", "192.168.5.7")})
    assert outward_addresses() == ("192.168.5.7",)
    _machine(monkeypatch, {}, containers | {"eth0": ("169.254.1.1",), "eth1": ("10.1.1.1", "fd00::7")})
    assert outward_addresses() == ("10.1.1.1", "fd00::7")
    _machine(monkeypatch, {}, containers)
    assert outward_addresses() == ("127.0.0.1",)
