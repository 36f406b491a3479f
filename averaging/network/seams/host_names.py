"""Names and addresses of machines: which of them others can dial, and which of them a daemon can listen on. Pure."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

ANY_HOST: Final = "::"
"""Every address of the machine, IPv4 and IPv6, as far as it has them."""

_LONGEST_NAME: Final = 253
"""Letters of a DNS name (RFC 1035, section 2.3.4, without the root's dot)."""

_ALONE: Final = "an address or a name alone, as 198.51.100.7 or host.example.org"
_LABEL: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
"""Containers are called with underscores, too."""

_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
"""A last label of this form belongs to an IPv4 address and never to a name, as browsers read it."""

_DISCARDED: Final = ipaddress.IPv6Network("100::/64")
"""RFC 6666."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def as_address(text: str) -> Address | None:
    """The IP address in `text`; None for a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether only this machine itself reaches `host`, an IP address or a name."""
    address = as_address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def bracketed(host: str) -> str:
    """`host` as it stands before a colon and a port."""
    return f"[{host}]" if ":" in host else host


def multiaddress(host: str, port: int) -> str:
    """A libp2p address of a TCP port on an IP address or a name. A name may have IPv4 addresses, IPv6 addresses, or both."""
    address = as_address(host)
    return f"/dns/{host}/tcp/{port}" if address is None else f"/ip{address.version}/{host}/tcp/{port}"


def unfit_to_announce(text: str) -> str:
    """The expectation that `text` fails as a name or address for other machines to dial; empty if it is one."""
    address = as_address(text)
    if address is None:
        return _unfit_name(text)
    if address.is_unspecified:
        return f"one address of this machine or of its router: {text} stands for all addresses of a machine"
    return _unfit_address(address)


def unfit_to_listen(text: str) -> str:
    """The expectation that `text` fails as a name or address of this machine; empty if it may be one."""
    address = as_address(text)
    if address is None:
        return _unfit_name(text)
    return "" if address.is_unspecified else _unfit_address(address)


def _unfit_address(address: Address) -> str:
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None or address.is_link_local:
            return "an address that is the same on every machine: a link-local one needs a zone, which differs"
        if address.ipv4_mapped is not None:
            return f"the IPv4 address itself: {address.ipv4_mapped}"
        if address in _DISCARDED:
            return "the address of one machine; packets to this one are discarded"
    if address.is_multicast:
        return "the address of one machine; this one is multicast"
    if isinstance(address, ipaddress.IPv4Address) and (address.is_reserved or address.packed[0] == 0):
        return "the address of one machine; this one is reserved"
    return ""


def _unfit_name(text: str) -> str:
    if not text.isascii():
        return _in_ascii(text)
    if re.search(r"[^A-Za-z0-9._-]", text) or len(text) > _LONGEST_NAME:
        return _ALONE
    labels = text.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return "four numbers from 0 to 255 without leading zeros, as 198.51.100.7"
    if not all(map(_LABEL.fullmatch, labels)):
        return "a name of letters, digits and inner hyphens between single dots, as host.example.org"
    return ""


def _in_ascii(text: str) -> str:
    try:
        return f"{_ALONE}; this one in ASCII: {text.encode('idna').decode('ascii')}"
    except UnicodeError:
        return _ALONE


def unheard(told: tuple[str, ...], listens_on: tuple[str, ...], own: tuple[str, ...]) -> str:
    """Why nobody who dials the announced addresses `told` gets to a daemon that listens on `listens_on`; empty if somebody may.

    A daemon that listens on this machine alone is reached through a tunnel, which may have any address.

    Args:
        told: IP addresses, those of an announced name included; empty if they are not known.
        listens_on: IP addresses, of which 0.0.0.0 and :: stand for all of their kind.
        own: IP addresses of this machine's interfaces.
    """
    if not told or all(map(is_loopback, listens_on)):
        return ""
    is_any = {version_of(host) for host in listens_on if ipaddress.ip_address(host).is_unspecified}
    has = {version_of(host) for host in own if not is_loopback(host)}
    heard = {version_of(host) for host in listens_on if version_of(host) not in is_any} | (is_any & has)
    dialled = {version_of(host) for host in told if not is_loopback(host)}
    if dialled and not dialled & heard:
        return f"it is reached over IPv{min(dialled)}, on which this machine does not listen"
    if all(host in own and host not in listens_on and version_of(host) not in is_any for host in told):
        return f"nobody listens there, but on {' and '.join(listens_on)}"
    return ""


def version_of(host: str) -> int:
    """4 or 6. `host` is an IP address."""
    return ipaddress.ip_address(host).version
