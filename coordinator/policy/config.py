"""The host's own settings: the folder of the run and the addresses on which it listens. Sources: averaging/host/settings.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from averaging.host.settings import DaemonSettings, HostName, ListenHost, NotifyUrl, Port, sources_of
from averaging.network.seams.host_names import ANY_HOST
from averaging.open_runs.card_directory import unfit_directory
from averaging.open_runs.card_lists import unfit_list_url
from averaging.system.usual_folders import state_root


def _check_list_url(text: str) -> str:
    if expected := unfit_list_url(text) if text else "":
        raise PydanticCustomError("list_url", "{expected}", {"expected": expected})
    return text


def _check_directory(text: str) -> str:
    if expected := unfit_directory(text) if text else "":
        raise PydanticCustomError("directory", "{expected}", {"expected": expected})
    return text


DirectoryAddresses = Annotated[str, AfterValidator(_check_directory)]
"""Addresses of nodes of a public directory of open runs; empty for none."""

ListUrl = Annotated[str, AfterValidator(_check_list_url)]
"""The address of a list of open runs; empty for none."""


class HostConfig(DaemonSettings):
    """Settings of one host."""

    model_config = sources_of("host")

    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Admission": ("invite_uses", "invite_hours", "open"),
        "Addresses and ports": ("listen_host", "announce_host", "grpc_port", "p2p_port", "helper", "helper_port"),
        "Screen, page and notices": ("screen", "http_host", "http_port", "notify_url"),
        "Page for everybody": ("public_http_host", "public_http_port", "public_downloads"),
        "Lists of open runs": ("list_at", "announce_dht", "keep_list"),
    }

    state_dir: Path = Field(default_factory=lambda: state_root() / "host")
    """Folder of one run: keys, ledger, packed data and checkpoints. One host at a time uses it. The user's state folder if not
    given.
    """

    listen_host: ListenHost = ANY_HOST
    """Address on which peers reach this host: :: for every address of the machine, 0.0.0.0 for every IPv4 one. 127.0.0.1 keeps the
    run on this machine.
    """

    announce_host: HostName = ""
    """Name or address that invites carry, where a router forwards the ports. The host's own addresses if not given."""

    grpc_port: Port = 0
    """TCP port for admission and reports; 0 for any free one, which later starts keep."""

    p2p_port: Port = 0
    """TCP port of the bootstrap node, which also serves the data; 0 for any free one, which later starts keep."""

    helper: bool = True
    """Run a helper beside the host while nobody can connect to most of the peers: it reduces for them, and has no vote."""

    helper_port: Port = 0
    """First of the helper's two TCP ports; 0 for the second after --p2p-port, or any free ones."""

    http_host: str = "127.0.0.1"
    """Address of the status page and metrics. Anybody who reaches it can read them."""

    http_port: Port = 0
    """Port of the status page and metrics; 0 for any free one."""

    public_http_host: str = "0.0.0.0"
    """Address of the read-only status page for anybody."""

    public_http_port: Port | None = None
    """Port of the read-only status page for anybody; 0 for any free one. No such page if not given."""

    screen: Literal["auto", "live", "plain"] = "auto"
    """How the run is shown: live redraws one screen, plain prints a line a round; auto takes live on a terminal."""

    public_downloads: Annotated[int, Field(ge=0, le=1000)] = 0
    """How many may download the newest model from that page at a time, as safetensors with its config and tokenizer; 0 for nobody.
    """

    open: bool = False
    """Admit strangers by a line without a secret, which may be published. The same as open = true in [admission] of run.toml; a run
    stays as it was opened.
    """

    list_at: ListUrl = ""
    """Address of a list of open runs to which this host brings its card: name, size, progress and the open line. Nowhere if not given.
    """

    announce_dht: DirectoryAddresses = ""
    """Addresses of nodes of a public directory, with commas between them, as `potluck directory` prints them. This host publishes its
    card there every few minutes, in a network of its own beside that of the run. Nowhere if not given.
    """

    keep_list: bool = False
    """Keep a list of open runs at this host's pages, to which any host may bring its card. `potluck find` reads it."""

    invite_uses: Annotated[int, Field(ge=1, le=100_000)] = 100
    """How many peers the invite that is printed at the start admits."""

    invite_hours: Annotated[float, Field(gt=0, le=24 * 365)] = 24.0
    """How many hours that invite is valid."""

    notify_url: NotifyUrl = ""
    """Web address that gets a line of JSON about what is unusual or final: the run is complete, has no rounds or no quorum, the disk
    is full, at most one of a kind an hour. Only https, or http on this machine. Better in host.toml or a variable than as a flag,
    since others on this machine can read flags. No notices if not given.
    """
