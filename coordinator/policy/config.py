"""The host's own settings: the folder of the run and the addresses on which it listens. Sources: averaging/host/settings.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from averaging.host.settings import DaemonSettings, HostName, Port, sources_of
from averaging.system.usual_folders import state_root


class HostConfig(DaemonSettings):
    """Settings of one host."""

    model_config = sources_of("host")

    state_dir: Path = Field(default_factory=lambda: state_root() / "host")
    """Folder of one run: keys, ledger, packed data and checkpoints. One host at a time uses it. The user's state folder if not
    given.
    """

    listen_host: str = "0.0.0.0"
    """Address on which peers reach this host; 127.0.0.1 keeps the run on this machine."""

    announce_host: HostName = ""
    """Name or address that invites carry, where a router forwards the ports. The host's own addresses if not given."""

    grpc_port: Port = 0
    """TCP port for admission and reports; 0 for any free one, which later starts keep."""

    p2p_port: Port = 0
    """TCP port of the bootstrap node, which also serves the data; 0 for any free one, which later starts keep."""

    http_host: str = "127.0.0.1"
    """Address of the status page and metrics. Anybody who reaches it can read them."""

    http_port: Port = 0
    """Port of the status page and metrics; 0 for any free one."""

    public_http_host: str = "0.0.0.0"
    """Address of the read-only status page for anybody."""

    public_http_port: Port | None = None
    """Port of the read-only status page for anybody; 0 for any free one. No such page if not given."""

    invite_uses: Annotated[int, Field(ge=1, le=100_000)] = 100
    """How many peers the invite that is printed at the start admits."""

    invite_hours: Annotated[float, Field(gt=0, le=24 * 365)] = 24.0
    """How many hours that invite is valid."""
