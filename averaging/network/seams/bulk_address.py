"""The addresses at which a peer takes direct bulk streams, and their encoding.

address  host, a space, port, ASCII     addresses are separated by a newline; no address is the empty text
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import psutil

from averaging.network.seams.host_names import ANY_HOST
from protocol.errors import RemoteProtocolError

MAX_ADDRESSES: Final = 8
MAX_TEXT_BYTES: Final = 2048
_NAME: Final = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*"
)
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")


@dataclass(frozen=True, slots=True)
class BulkAddress:
    """A TCP port on an IP address or a name."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host} {self.port}"


def encode_addresses(addresses: Iterable[BulkAddress]) -> bytes:
    """The addresses as bytes for another peer; at most MAX_ADDRESSES."""
    return "\n".join(map(str, list(addresses)[:MAX_ADDRESSES])).encode("ascii")


def decode_addresses(data: bytes) -> tuple[BulkAddress, ...]:
    """The addresses that another peer sent.

    Raises:
        RemoteProtocolError: malformed, or too many.
    """
    try:
        lines = data.decode("ascii").split("\n") if data and len(data) <= MAX_TEXT_BYTES else []
    except UnicodeDecodeError:
        lines = [""]
    addresses = tuple(_address(line) for line in lines)
    if len(data) > MAX_TEXT_BYTES or len(addresses) > MAX_ADDRESSES or None in addresses:
        raise RemoteProtocolError(f"bulk addresses {data[:80]!r}", f"at most {MAX_ADDRESSES} of a host and a port")
    return tuple(address for address in addresses if address is not None)


def _address(line: str) -> BulkAddress | None:
    host, _, port = line.partition(" ")
    if not _PORT.fullmatch(port) or int(port) > 65535:
        return None
    if _NAME.fullmatch(host) or _is_ip(host):
        return BulkAddress(host, int(port))
    return None


def _is_ip(text: str) -> bool:
    try:
        return not getattr(ipaddress.ip_address(text), "scope_id", None)
    except ValueError:
        return False


def own_addresses(multiaddresses: Sequence[str], listen_host: str, port: int) -> tuple[BulkAddress, ...]:
    """Our addresses for bulk: the hosts of our libp2p addresses, which include announced names and addresses seen by others.

    If we listen on all of IPv4 and IPv6, this machine's public IPv6 addresses are added. Relay addresses are left out.
    """
    hosts: dict[str, None] = {}
    for address in multiaddresses:
        parts = address.split("/")
        if len(parts) > 4 and parts[1] in ("ip4", "ip6", "dns", "dns4", "dns6") and "p2p-circuit" not in parts:
            hosts[parts[2]] = None
    has_name = any(not _is_ip(host) for host in hosts)
    if listen_host == ANY_HOST and hosts and not has_name:
        hosts |= dict.fromkeys(_public_ipv6())
    public_first = sorted(hosts, key=lambda host: _is_ip(host) and not ipaddress.ip_address(host).is_global)
    return tuple(BulkAddress(host, port) for host in public_first[:MAX_ADDRESSES])


def _public_ipv6() -> list[str]:
    found = []
    for addresses in psutil.net_if_addrs().values():
        for entry in addresses:
            if (
                entry.family == socket.AF_INET6
                and _is_ip(entry.address)
                and ipaddress.ip_address(entry.address).is_global
            ):
                found.append(entry.address)
    return found
