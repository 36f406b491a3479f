"""The addresses on which the host listens and that it announces. Both are kept over restarts; invites carry the addresses."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import structlog

from averaging.network.seams.host_names import as_address, bracketed, is_loopback, multiaddress, unheard
from averaging.network.seams.listening import (
    addresses_of,
    bind_listeners,
    is_free,
    listen_addresses,
    outward_addresses,
    own_addresses,
)
from protocol.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from coordinator.ledger.ledger import Ledger
    from coordinator.policy.config import HostConfig
    from coordinator.run.start_command import StartCommand

_log = structlog.get_logger()

MAX_PORT: Final = 65_535
_ANY: Final = ("0.0.0.0", "::", "")
_ANNOUNCED_KEY: Final = "announce host"
_HTTP_KEY: Final = "http port"
_PUBLIC_KEY: Final = "public http port"
_TRIES: Final = 32
"""Free ports that are tried until the one after it is free, too."""


@dataclass(frozen=True, slots=True)
class HostAddresses:
    """Ports, and the host names or addresses that invites carry.

    Attributes:
        listen_host: as configured.
        listens_on: its IP addresses; 0.0.0.0 and :: stand for all of their kind.
        public_hosts: names or addresses for volunteers, at least one.
    """

    listen_host: str
    listens_on: tuple[str, ...]
    public_hosts: tuple[str, ...]
    grpc_port: int
    p2p_port: int

    @property
    def public_host(self) -> str:
        """The name or address that is tried first."""
        return self.public_hosts[0]

    @property
    def bulk_port(self) -> int:
        """Port that serves and takes shards and states: the one after the bootstrap node's; 0 (any) if that one is not fixed."""
        return _bulk_port(self.grpc_port, self.p2p_port)

    @property
    def grpc_addresses(self) -> tuple[str, ...]:
        """The addresses in an invite: "host:port" each."""
        return tuple(f"{bracketed(host)}:{self.grpc_port}" for host in self.public_hosts)

    @property
    def p2p_listen(self) -> tuple[str, ...]:
        """Multiaddresses to listen on."""
        return tuple(multiaddress(host, self.p2p_port) for host in self.listens_on)

    @property
    def p2p_announce(self) -> tuple[str, ...]:
        """Multiaddresses to announce; empty if the listening address is the public one."""
        if self.public_hosts == (self.listen_host,):
            return ()
        return tuple(multiaddress(host, self.p2p_port) for host in self.public_hosts)


def _bulk_port(grpc_port: int, p2p_port: int) -> int:
    port = p2p_port + 1
    return port if port <= MAX_PORT and port != grpc_port else 0


def reach_note(addresses: HostAddresses, command: StartCommand) -> str:
    """A note for the host when its invites work for some volunteers only. Empty if they seem to work for everybody. `command` started
    the host.
    """
    hosts, grpc_port, p2p_port = addresses.public_hosts, addresses.grpc_port, addresses.p2p_port
    if any(map(_is_for_all, hosts)):
        return ""
    who = _WHO[_reach(hosts)]
    is_row = p2p_port == grpc_port + 1 and addresses.bulk_port
    ports = (
        f"{grpc_port} to {p2p_port + 1}" if is_row else f"{grpc_port}, {p2p_port} and {addresses.bulk_port or '...'}"
    )
    elsewhere = command.changed(announce_host="YOUR_ADDRESS", grpc_port=grpc_port, p2p_port=p2p_port)
    if is_loopback(addresses.listen_host):
        elsewhere = elsewhere.changed(listen_host=None)
    return (
        f"the invite carries {' and '.join(hosts)}, which only {who} reaches. For volunteers elsewhere: {elsewhere}, and forward "
        f"TCP {ports} on the router to this machine"
    )


def wider_note(before: Sequence[str], addresses: HostAddresses, command: StartCommand) -> str:
    """A note if more people can reach the host than at its last start; else empty.

    Args:
        before: the invite's addresses at that start, "host:port" each; empty if there was none.
        command: started the host.
    """
    earlier = [address.rpartition(":")[0].strip("[]") for address in before]
    if not earlier or _reach(addresses.public_hosts) <= _reach(earlier):
        return ""
    was, now = ", ".join(earlier), ", ".join(addresses.public_hosts)
    note = f"more people can reach this host than at its last start: the invite carries {now}, where it carried {was}"
    if all(map(is_loopback, earlier)):
        note += f". To keep it to this machine: {command.changed(listen_host=earlier[0], announce_host=None)}"
    return note


_WHO: Final = ("this machine", "its own network", "everybody")


def _reach(hosts: Sequence[str]) -> int:
    """Place in _WHO of those that one of these hosts can be reached by."""
    if any(map(_is_for_all, hosts)):
        return 2
    return 0 if all(map(is_loopback, hosts)) else 1


def _is_for_all(host: str) -> bool:
    address = as_address(host)
    return host.lower() != "localhost" if address is None else address.is_global


def public_url(url: str, host: str) -> str:
    """The URL of a served page for other machines. A page on all interfaces gets `host`, the address in the invites."""
    parts = urlsplit(url)
    listens_on = parts.hostname or ""
    return f"http://{bracketed(host if listens_on in _ANY else listens_on)}:{parts.port}/"


def _public_hosts(config: HostConfig, announced: str, listens_on: tuple[str, ...]) -> tuple[str, ...]:
    """The announced names or addresses: as configured, else those of this machine that others reach, on which it listens."""
    if announced:
        return (announced,)
    if config.listen_host not in _ANY:
        return (config.listen_host,)
    kinds = {":" in host for host in listens_on}
    return tuple(host for host in outward_addresses() if (":" in host) in kinds) or ("127.0.0.1",)


def _announced(config: HostConfig, ledger: Ledger) -> tuple[str, str]:
    """The name or address to announce as configured, else that of the last start; and its flag, for errors."""
    if "announce_host" in config.model_fields_set:
        return config.announce_host, "--announce-host"
    kept = (ledger.get(_ANNOUNCED_KEY) or b"").decode("ascii")
    return kept, "--announce-host '', which forgets the one of an earlier start,"


def _check_announced(told: str, flag: str, listen_host: str, listens_on: tuple[str, ...]) -> None:
    """Compare the announced name or address with the listening ones. Blocks while a name is looked up.

    Raises:
        ConfigError: one port for both, or nobody who dials it can get here.
    """
    found = (told,) if as_address(told) is not None else addresses_of(told)
    if not found:
        remedy = "check its DNS record, unless volunteers resolve it by another server"
        _log.warning("announced_name_not_known_here", name=told, remedy=remedy)
    own = tuple(host for hosts in own_addresses().values() for host in hosts)
    if why := unheard(found, listens_on, own):
        raise ConfigError(
            f"the host is announced as {told}, while it listens on {listen_host}: {why}",
            "an announced address that leads to the listening one",
            f"give another with {flag} or --listen-host ::",
        )


def _free_port(listens_on: tuple[str, ...], host: str) -> int:
    """A free port whose successor is free, too: the bootstrap node takes both."""
    try:
        for _ in range(_TRIES):
            sockets = bind_listeners(listens_on, 0)
            port = int(sockets[0].getsockname()[1])
            for each in sockets:
                each.close()
            if port < MAX_PORT and is_free(listens_on, port + 1):
                break
    except OSError as error:
        raise MachineError(
            f"cannot listen on {host} ({error.strerror})", "an address of this machine", "set --listen-host"
        ) from error
    return port


def _port(ledger: Ledger, name: str, wanted: int, listens_on: tuple[str, ...], host: str, other: int) -> int:
    """`other`: the port of another service, which the system may give a second time once it is closed."""
    stored = ledger.get(name)
    port = wanted or (int(stored) if stored else _free_port(listens_on, host))
    for _ in range(_TRIES):
        if wanted or stored or port != other:
            break
        port = _free_port(listens_on, host)
    flag = "--" + name.replace(" ", "-")
    _check_free(
        name,
        port,
        listens_on,
        host,
        f"give another with {flag}" if wanted else f"free it: invites name it; or move with {flag}",
    )
    return port


def _check_free(name: str, port: int, listens_on: tuple[str, ...], host: str, remedy: str) -> None:
    try:
        sockets = bind_listeners(listens_on, port)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            remedy = "give one of its addresses with --listen-host"
        raise MachineError(
            f"{name}: cannot listen on {bracketed(host)}:{port} ({error.strerror})",
            "a free port on an address of this machine",
            remedy,
        ) from error
    for each in sockets:
        each.close()


def kept_http_port(ledger: Ledger, http_host: str, *, is_public: bool = False) -> int:
    """The port of the status page, or of the public page, at the last start; 0, for any free one, if it is in use or not known.
    Blocks.
    """
    port = int(ledger.get(_PUBLIC_KEY if is_public else _HTTP_KEY) or 0)
    try:
        return port if port and is_free(listen_addresses(http_host), port) else 0
    except MachineError:  # an unknown name, which the start itself reports
        return 0


def keep_http_port(ledger: Ledger, port: int, *, is_public: bool = False) -> None:
    """Remember the port of the status page, or of the public page, for the next start."""
    ledger.put(_PUBLIC_KEY if is_public else _HTTP_KEY, str(port).encode("ascii"))


def settle_addresses(config: HostConfig, ledger: Ledger) -> HostAddresses:
    """Ports and announced address as configured, else those of the last start so that invites stay valid, else ones that fit this
    machine. Blocks.

    Each port is tested by listening on it briefly. libp2p shares its ports with other processes of the same user and would not
    notice. They are remembered only when all are usable, so a failed start changes nothing.

    Raises:
        MachineError: a port is in use, or `listen_host` is no address of this machine.
        ConfigError: nobody who dials the announced address can get here.
    """
    host = config.listen_host
    listens_on = listen_addresses(host)
    grpc_port = _port(ledger, "grpc port", config.grpc_port, listens_on, host, config.p2p_port)
    p2p_port = _port(ledger, "p2p port", config.p2p_port, listens_on, host, grpc_port)
    if grpc_port == p2p_port:
        raise ConfigError(
            f"grpc port and p2p port are both {grpc_port}", "two ports", "give another with --grpc-port or --p2p-port"
        )
    bulk_port = _bulk_port(grpc_port, p2p_port)
    if config.p2p_port and bulk_port:
        _check_free(
            "the port after the p2p port, for weights and data",
            bulk_port,
            listens_on,
            host,
            "give others with --p2p-port",
        )
    announced, flag = _announced(config, ledger)
    if announced:
        _check_announced(announced, flag, host, listens_on)
    ledger.put("grpc port", str(grpc_port).encode("ascii"))
    ledger.put("p2p port", str(p2p_port).encode("ascii"))
    ledger.put(_ANNOUNCED_KEY, announced.encode("ascii"))
    return HostAddresses(host, listens_on, _public_hosts(config, announced, listens_on), grpc_port, p2p_port)
