"""The addresses on which the host listens and that it announces. Ports are kept over restarts; invites carry the address."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from protocol.errors import MachineError

if TYPE_CHECKING:
    from coordinator.ledger.ledger import Ledger
    from coordinator.policy.config import HostConfig

MAX_PORT: Final = 65_535
_ANY: Final = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class HostAddresses:
    """Ports and the host name or address that invites carry."""

    listen_host: str
    public_host: str
    grpc_port: int
    p2p_port: int

    @property
    def bulk_port(self) -> int:
        """Port that serves and takes shards and states: the one after the bootstrap node's; 0 (any) if that one is not fixed."""
        port = self.p2p_port + 1
        return port if port <= MAX_PORT and port != self.grpc_port else 0

    @property
    def grpc_address(self) -> str:
        """The address in an invite: "host:port"."""
        return f"{_bracketed(self.public_host)}:{self.grpc_port}"

    @property
    def p2p_listen(self) -> tuple[str, ...]:
        """Multiaddresses to listen on."""
        return (multiaddress(self.listen_host or "0.0.0.0", self.p2p_port),)

    @property
    def p2p_announce(self) -> tuple[str, ...]:
        """Multiaddresses to announce; empty if the listening address is the public one."""
        if self.listen_host == self.public_host:
            return ()
        return (multiaddress(self.public_host, self.p2p_port),)


def reach_note(host: str) -> str:
    """A note for the host when an invite with this name or address works for some volunteers only. Empty if it seems to work for
    everybody.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        is_this_machine, is_for_all = host == "localhost", host != "localhost"
    else:
        is_this_machine, is_for_all = address.is_loopback, address.is_global
    if is_for_all:
        return ""
    who = "this machine" if is_this_machine else "its own network"
    return (
        f"the invite carries {host}, which only {who} reaches; for volunteers elsewhere forward three TCP ports of the router to "
        "this machine, PORT, NEXT and the one after NEXT, and start with --announce-host ADDRESS --grpc-port PORT --p2p-port NEXT"
    )


def public_url(url: str, host: str) -> str:
    """The URL of a served page for other machines. A page on all interfaces gets `host`, the address in the invites."""
    parts = urlsplit(url)
    listens_on = parts.hostname or ""
    return f"http://{_bracketed(host if listens_on in _ANY else listens_on)}:{parts.port}/"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def multiaddress(host: str, port: int) -> str:
    """A libp2p address of a TCP port on an IP address or a name."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return f"/dns4/{host}/tcp/{port}"
    return f"/ip{version}/{host}/tcp/{port}"


def public_host(config: HostConfig) -> str:
    """The announced name or address: as configured, else that of the interface towards the internet."""
    if config.announce_host:
        return config.announce_host
    if config.listen_host not in _ANY:
        return config.listen_host
    # Connecting a datagram socket sends nothing. It only asks the system which interface it would use.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise MachineError(
                f"cannot listen on {host} ({error.strerror})", "an address of this machine", "set --listen-host"
            ) from error
        return int(probe.getsockname()[1])


def _port(ledger: Ledger, name: str, wanted: int, host: str) -> int:
    stored = ledger.get(name)
    port = wanted or (int(stored) if stored else _free_port(host))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            flag = "--" + name.replace(" ", "-")
            remedy = f"give another with {flag}" if wanted else f"free it: invites name it; or move with {flag}"
            raise MachineError(
                f"{name}: cannot listen on {_bracketed(host)}:{port} ({error.strerror})",
                "a free port on an address of this machine",
                remedy,
            ) from error
    return port


def settle_addresses(config: HostConfig, ledger: Ledger) -> HostAddresses:
    """Ports as configured, else those of the last start so that invites stay valid, else free ones. Blocks.

    Each port is tested by listening on it briefly. libp2p shares its ports with other processes of the same user and would not
    notice. Ports are remembered only when both are free, so a failed start changes nothing.

    Raises:
        MachineError: a port is in use, or `listen_host` is no address of this machine.
    """
    host = config.listen_host
    grpc_port = _port(ledger, "grpc port", config.grpc_port, host)
    p2p_port = _port(ledger, "p2p port", config.p2p_port, host)
    if grpc_port == p2p_port:
        raise MachineError(f"grpc port and p2p port are both {grpc_port}", "two ports", "change one of them")
    ledger.put("grpc port", str(grpc_port).encode("ascii"))
    ledger.put("p2p port", str(p2p_port).encode("ascii"))
    return HostAddresses(host, public_host(config), grpc_port, p2p_port)
