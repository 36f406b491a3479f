"""Sockets that listen on one or on all addresses of this machine, and the addresses that it has."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import psutil

from averaging.network.seams.host_names import ANY_HOST, as_address, is_loopback
from protocol.errors import MachineError

BACKLOG: Final = 128
_TRIES: Final = 32
"""Free ports of the first address that are tried until one is free on the others, too."""

_OUTWARD: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses for documentation (RFC 5737, RFC 3849). No packet is sent to them."""

_VIRTUAL: Final = ("docker", "br-", "veth", "virbr")
"""Interfaces that lead to this machine's own containers."""


def listen_addresses(host: str) -> tuple[str, ...]:
    """The IP addresses that `host` stands for: "::" for all of IPv4 and of IPv6, as far as this machine has them. Blocks.

    Raises:
        MachineError: an unknown name.
    """
    if host in ("", ANY_HOST):
        return ("0.0.0.0", "::") if has_ipv6() else ("0.0.0.0",)
    if as_address(host) is not None:
        return (host,)
    found = addresses_of(host)
    if not found:
        raise MachineError(f"{host} has no address", "an address of this machine", "set --listen-host")
    return found


def has_ipv6() -> bool:
    """Whether this machine can listen on IPv6."""
    if not socket.has_ipv6:
        return False
    with suppress(OSError), _socket("::", 0):
        return True
    return False


def addresses_of(name: str) -> tuple[str, ...]:
    """The IP addresses of a name, as this machine resolves it; none if it is unknown. Blocks."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(place[0]).partition("%")[0] for *_, place in found))


def bind_listeners(addresses: Sequence[str], port: int) -> list[socket.socket]:
    """Sockets that listen on one port of all these IP addresses; `port` 0 for one that is free on all. They do not block.

    Raises:
        OSError: the port is in use, or an address is not ours.
    """
    for _ in range(_TRIES):
        sockets = list[socket.socket]()
        try:
            for address in addresses:
                sockets.append(_socket(address, sockets[0].getsockname()[1] if sockets else port))
                sockets[-1].setblocking(False)
                sockets[-1].listen(BACKLOG)
        except OSError as error:
            for each in sockets:
                each.close()
            if port or not sockets or error.errno != errno.EADDRINUSE:
                raise
            continue
        return sockets
    raise OSError(errno.EADDRINUSE, "no port is free on all addresses")


def _socket(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


def is_free(addresses: Sequence[str], port: int) -> bool:
    """Whether this port can be listened on at all these IP addresses now."""
    try:
        sockets = bind_listeners(addresses, port)
    except (OSError, OverflowError):
        return False
    for each in sockets:
        each.close()
    return True


def own_addresses() -> dict[str, tuple[str, ...]]:
    """The IP addresses of the interfaces that are up, by interface, without zones."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    return {
        name: tuple(e.address.partition("%")[0] for e in entries if e.family in (socket.AF_INET, socket.AF_INET6))
        for name, entries in sorted(psutil.net_if_addrs().items())
        if name in up
    }


def outward_addresses() -> tuple[str, ...]:
    """The addresses at which other machines reach this one: those of the interfaces towards the internet, IPv4 first. Without such a
    route, those of the first interface to a local network; without any network, 127.0.0.1.
    """
    routed = tuple(filter(None, map(_routed, _OUTWARD)))
    return routed or _local(own_addresses()) or ("127.0.0.1",)


def _routed(family: socket.AddressFamily) -> str:
    # Connecting a datagram socket sends nothing. It only asks the system which interface it would use.
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_OUTWARD[family], 9))
            found = str(probe.getsockname()[0])
    except OSError:
        return ""
    return "" if _is_near(found) else found


def _local(interfaces: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The first IPv4 and the first IPv6 address of a real interface; addresses that machines give themselves come last."""
    found = [host for name, hosts in interfaces.items() if not name.startswith(_VIRTUAL) for host in hosts]
    of_ipv4 = sorted((host for host in found if ":" not in host and not is_loopback(host)), key=_is_near)
    of_ipv6 = [host for host in found if ":" in host and not _is_near(host)]
    return (*of_ipv4[:1], *of_ipv6[:1])


def _is_near(host: str) -> bool:
    address = as_address(host.partition("%")[0])
    return address is None or address.is_loopback or address.is_link_local or address.is_unspecified
