"""The addresses of this peer that are kept over restarts: a router forwards ports, and a status page is bookmarked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import structlog
import trio
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from averaging.host.settings import HostName
from averaging.network.seams.interfaces import Network
from averaging.network.seams.listening import is_free, listen_addresses
from peer.settings.config import PeerConfig
from protocol.errors import PotluckError

log = structlog.get_logger()

FILE_NAME: Final = "addresses.json"
_KeptPort = Annotated[int, Field(ge=0, le=65_535)]


class KeptAddresses(BaseModel):
    """The announced name and the ports of the last start; 0 and "" for none."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    announce_host: HostName = ""
    listen_port: _KeptPort = 0
    bulk_port: _KeptPort = 0
    http_port: _KeptPort = 0


def read_kept(state_dir: Path) -> KeptAddresses:
    """The addresses of the last start; none if there was none, or if they cannot be read, which is logged."""
    path = state_dir / FILE_NAME
    try:
        return KeptAddresses.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return KeptAddresses()
    except (OSError, ValidationError) as error:
        log.warning("addresses_not_read", path=str(path), reason=f"{str(error)[:200]}; other ports may be taken")
        return KeptAddresses()


def with_kept(config: PeerConfig) -> PeerConfig:
    """The settings, with the announced name and the ports of the last start where the owner gives none. A kept port that is in use is
    left to any free one, unless a name is announced with it. Blocks.
    """
    kept, changes = read_kept(config.state_dir), dict[str, object]()
    if "announce_host" not in config.model_fields_set and kept.announce_host:
        changes["announce_host"] = kept.announce_host
        log.info("announced_as_before", announce_host=kept.announce_host, to_forget="--announce-host ''")
    announces = bool(changes.get("announce_host", config.announce_host))
    if not config.listen_port and kept.listen_port and (announces or _is_free(config.listen_host, kept.listen_port)):
        changes["listen_port"] = kept.listen_port
    if _is_bulk_kept(config, kept, changes) and _is_free(config.listen_host, kept.bulk_port):
        changes["bulk_port"] = kept.bulk_port
    if not config.http_port and kept.http_port and _is_free(config.http_host, kept.http_port):
        changes["http_port"] = kept.http_port
    return config.model_copy(update=changes) if changes else config


def _is_bulk_kept(config: PeerConfig, kept: KeptAddresses, changes: Mapping[str, object]) -> bool:
    """Whether the port of weights and data is that of the last start. Beside a port that the owner gives it is the next one."""
    follows_given = config.bulk_port is None and "listen_port" not in changes
    return bool(kept.bulk_port) and not config.bulk_port and not follows_given and not config.no_listen


def _is_free(host: str, port: int) -> bool:
    try:
        return is_free(listen_addresses(host), port)
    except PotluckError:  # a host that is not ours, which the start itself reports
        return False


def keep(config: PeerConfig, addresses: Sequence[str], bulk_port: int, http_port: int) -> KeptAddresses:
    """Remember what is in use: `addresses`, our multiaddresses, the port of weights and data, 0 for none, and that of the status page.
    Blocks.

    Returns:
        What was remembered. A failure to write is logged, since a start without it works, too.
    """
    before = read_kept(config.state_dir)
    kept = KeptAddresses(
        announce_host=config.announce_host,
        listen_port=listening_port(addresses) or config.listen_port or before.listen_port,
        bulk_port=bulk_port or before.bulk_port,
        http_port=http_port,
    )
    path = config.state_dir / FILE_NAME
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(kept.model_dump_json() + "\n", encoding="utf8")
        os.replace(temporary, path)
    except OSError as error:
        log.warning("addresses_not_kept", path=str(path), reason=str(error)[:200])
    return kept


def listening_port(addresses: Sequence[str]) -> int:
    """The TCP port of the first of these multiaddresses; 0 without one."""
    for address in addresses:
        port = address.partition("/tcp/")[2].partition("/")[0]
        if port.isdigit():
            return int(port)
    return 0


async def keep_addresses(config: PeerConfig, network: Network, http_port: int) -> str:
    """Remember the addresses in use. Returns the line about the TCP ports for the owner; that of the status page is told with its
    address.
    """
    bulk_port = next((address.port for address in network.bulk_addresses()), 0)
    kept = await trio.to_thread.run_sync(keep, config, network.addresses(), bulk_port, http_port)
    named = [(0 if config.no_listen else kept.listen_port, "peers"), (bulk_port, "weights and data")]
    ports = [f"{port} ({purpose})" for port, purpose in named if port]
    return f"ports: TCP {', '.join(ports)}" if ports else "ports: none, since it takes no connections"
