"""Whether a peer announces that nobody can connect to it. The owner's setting comes first, then the host's finding. Pure."""

from __future__ import annotations

import ipaddress

from peer.checks.host_core import PortTaken, ReachReport, open_way
from peer.checks.machine_core import Unread


def has_owners_word(*, no_listen: bool, announce_host: str) -> bool:
    """Whether the owner has set how others reach this peer. The host need not be asked then."""
    return no_listen or bool(announce_host)


def is_outbound_only(*, no_listen: bool, announce_host: str, reach: ReachReport | PortTaken | Unread | None) -> bool:
    """Whether others are told not to expect connections to this peer. `reach` is the result of the host's attempt to connect back,
    None if it was not asked. A busy host on the same machine that could not connect in time proves nothing.
    """
    if has_owners_word(no_listen=no_listen, announce_host=announce_host):
        return no_listen
    return isinstance(reach, ReachReport) and not reach.is_reached and not _is_loopback(reach.seen_as)


def outbound_sentence(reach: ReachReport) -> str:
    """The sentences for the owner, with the flag that changes it."""
    return (
        f"Others cannot connect to this machine; your work counts in full all the same. To help more: {open_way(reach)}"
    )


def _is_loopback(seen_as: str) -> bool:
    try:
        address = ipaddress.ip_address(seen_as.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
