"""The addresses where this peer listens, and those that it announces."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from peer.settings.config import PeerConfig
from protocol.errors import ConfigError, MachineError

MAX_PORT: Final = 65_535
_REMEDY: Final = "give another with --listen-port (0 for any) or --listen-host"


def multiaddress(host: str, port: int) -> str:
    """A libp2p address of a TCP port on an IP address or a name."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return f"/dns4/{host}/tcp/{port}"
    return f"/ip{version}/{host}/tcp/{port}"


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
        ConfigError: one port for both.
    """
    if config.no_listen:
        return
    if config.bulk_port and config.bulk_port == config.listen_port:
        raise ConfigError(
            f"peer settings listen_port and bulk_port are both {config.bulk_port}",
            "two ports",
            "leave --bulk-port out for the next one",
        )
    _check_port(config.listen_host, config.listen_port, _REMEDY)
    if config.bulk_port:
        _check_port(config.listen_host, config.bulk_port, "give another with --bulk-port (0 for any)")


def _check_port(host: str, port: int, remedy: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            raise MachineError(
                f"cannot listen on {host}:{port} ({error.strerror})",
                "a free port on an address of this machine",
                remedy,
            ) from error
