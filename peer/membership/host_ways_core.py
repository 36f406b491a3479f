"""The ways to the host besides gRPC: addresses in an invite -> ports to try -> a sentence about those that do not answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.host_names import bracketed
from protocol.ids import PeerId

MAX_PORT: Final = 65_535
_ON_MULTIADDRESS: Final = ("ip4", "ip6", "dns", "dns4", "dns6")


class Purpose(Enum):
    """The use of a port of the host."""

    PEERS = "peers"
    DATA = "weights and data"


@dataclass(frozen=True, slots=True)
class Tried:
    """A port of the host that was tried; `reason` is empty if it answered."""

    purpose: Purpose
    port: BulkAddress
    reason: str = ""


def host_in(bootstrap: Sequence[str]) -> PeerId | None:
    """The host's peer id in the addresses of an invite, which are all the host's."""
    found = {address.rpartition("/p2p/")[2] for address in bootstrap if "/p2p/" in address}
    return PeerId(found.pop()) if len(found) == 1 else None


def peer_ports(bootstrap: Sequence[str], host: PeerId) -> tuple[BulkAddress, ...]:
    """The ports of the host's own multiaddresses."""
    ports = list[BulkAddress]()
    for address in bootstrap:
        _, kind, name, transport, port, *rest = (*address.split("/"), "", "", "", "", "")
        is_ours = kind in _ON_MULTIADDRESS and transport == "tcp" and port.isdigit()
        if is_ours and [part for part in rest if part] == ["p2p", host]:
            ports.append(BulkAddress(name, int(port)))
    return tuple(dict.fromkeys(ports))


def data_ports(ports: Sequence[BulkAddress], grpc_addresses: Sequence[str]) -> tuple[BulkAddress, ...]:
    """The ports for weights and data: those after the ports for peers. None where gRPC has that port, for then it is any."""
    taken = {int(address.rpartition(":")[2]) for address in grpc_addresses if address.rpartition(":")[2].isdigit()}
    after = (BulkAddress(each.host, each.port + 1) for each in ports)
    return tuple(each for each in after if each.port <= MAX_PORT and each.port not in taken)


def closed(tried: Sequence[Tried]) -> tuple[Tried, ...]:
    """The failures of each purpose for which no port answered. One address of several is enough."""
    answered = {each.purpose for each in tried if not each.reason}
    return tuple(each for each in tried if each.purpose not in answered)


def closed_sentence(answers_at: str, tried: Sequence[Tried]) -> str:
    """The sentence about ports that do not answer, and the remedy; empty if each purpose has one that does.

    `answers_at`: the gRPC address that answered, "host:port".
    """
    failures = closed(tried)
    if not failures:
        return ""
    places = " and ".join(f"{place(each.port)} for {each.purpose.value} ({each.reason})" for each in failures)
    numbers = dict.fromkeys(str(each.port.port) for each in failures)
    word, them = ("ports", "them") if len(numbers) > 1 else ("port", "it")
    effect = "; weights and data then go over the port of the peers, which is slower"
    only_data = all(each.purpose is Purpose.DATA for each in failures)
    return (
        f"the host answers at {answers_at}, but not at {places}{effect if only_data else ''}. Its owner must forward TCP {word} "
        f"{' and '.join(numbers)} to the host and open {them} in the firewall; this peer goes on trying"
    )


def place(port: BulkAddress) -> str:
    """The address as host:port."""
    return f"{bracketed(port.host)}:{port.port}"
