"""The addresses where this peer listens, and those that it announces."""

from __future__ import annotations

from typing import Final

from averaging.network.seams.host_names import as_address, bracketed, multiaddress, unheard
from averaging.network.seams.listening import addresses_of, bind_listeners, listen_addresses, own_addresses
from peer.settings.config import PeerConfig
from protocol.errors import ConfigError, MachineError

MAX_PORT: Final = 65_535
_REMEDY: Final = "give another with --listen-port (0 for any) or --listen-host"


def announced(config: PeerConfig) -> tuple[str, ...]:
    """The addresses to announce instead of the listening address; empty if they are the same.

    Raises:
        ConfigError: a name to announce without a port that could be forwarded.
    """
    if not config.announce_host:
        return ()
    if not config.listen_port:
        raise ConfigError(
            f"peer setting announce_host is {config.announce_host!r} while listen_port is 0",
            "the port that is forwarded to this machine",
            "set it with --listen-port",
        )
    return (multiaddress(config.announce_host, config.listen_port),)


def listening(config: PeerConfig) -> tuple[str, ...]:
    """The multiaddresses to listen on: one port on all addresses. Blocks while a name is looked up.

    Raises:
        MachineError: an unknown name, or no port is free on all of them.
    """
    addresses, port = listen_addresses(config.listen_host), config.listen_port
    if not port and len(addresses) > 1:  # libp2p would take another one on each
        port = _free_port(addresses)
    return tuple(multiaddress(address, port) for address in addresses)


def _free_port(addresses: tuple[str, ...]) -> int:
    try:
        sockets = bind_listeners(addresses, 0)
    except OSError as error:
        raise MachineError(f"no port to listen on ({error.strerror})", "a free port", _REMEDY) from error
    port = int(sockets[0].getsockname()[1])
    for each in sockets:
        each.close()
    return port


def bulk_port(config: PeerConfig) -> tuple[int, bool]:
    """The port for direct bulk streams, 0 for any; and whether another port may be used if it is taken."""
    if config.bulk_port is not None:
        return config.bulk_port, False
    has_next = 0 < config.listen_port < MAX_PORT
    return (config.listen_port + 1 if has_next else 0), True


def check_listen_address(config: PeerConfig) -> None:
    """Briefly bind the peer-to-peer port, and the bulk port if the owner chose it, before the network starts and before an invite
    is used.

    libp2p lets processes of one user share a port. A second peer on the same port would start silently and lose half of its
    connections.

    Raises:
        MachineError: a port is in use or the address is not ours.
        ConfigError: one port for both, or an announced address that does not lead here.
    """
    if config.no_listen:
        return
    if config.bulk_port and config.bulk_port == config.listen_port:
        raise ConfigError(
            f"peer settings listen_port and bulk_port are both {config.bulk_port}",
            "two ports",
            "leave --bulk-port out for the next one",
        )
    addresses = listen_addresses(config.listen_host)
    _check_port(config.listen_host, addresses, config.listen_port, _REMEDY)
    if config.bulk_port:
        _check_port(config.listen_host, addresses, config.bulk_port, "give another with --bulk-port (0 for any)")
    if config.announce_host:
        _check_announced(config.announce_host, config.listen_host, addresses)


def _check_announced(told: str, listen_host: str, listens_on: tuple[str, ...]) -> None:
    found = (told,) if as_address(told) is not None else addresses_of(told)
    own = tuple(host for hosts in own_addresses().values() for host in hosts)
    if why := unheard(found, listens_on, own):
        raise ConfigError(
            f"this peer is announced as {told}, while it listens on {listen_host}: {why}",
            "an announced address that leads to the listening one",
            "give another with --announce-host ('' for none) or --listen-host ::",
        )


def _check_port(host: str, addresses: tuple[str, ...], port: int, remedy: str) -> None:
    try:
        sockets = bind_listeners(addresses, port)
    except OSError as error:
        raise MachineError(
            f"cannot listen on {bracketed(host)}:{port} ({error.strerror})",
            "a free port on an address of this machine",
            remedy,
        ) from error
    for each in sockets:
        each.close()
