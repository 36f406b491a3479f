"""`potluck directory`: a node of a public directory of open runs. Anybody may run one; it needs no run and no graphics card."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from protocol.tables import examples

DEFAULT_PORT: Final = 4700
_OF_USER: Final = "directory"
"""Folder of the node's identity in the user's state folder."""


def add_directory_command(app: typer.Typer, panel: str) -> None:
    """Add `potluck directory` to the command line."""
    running = ("potluck directory", "potluck directory --announce-host runs.example.org --port 4700")
    app.command("directory", rich_help_panel=panel, epilog=examples(*running))(directory)


def directory(
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 for any free one.")] = DEFAULT_PORT,
    listen_host: Annotated[str, typer.Option(help="Address of this machine to listen on.")] = "0.0.0.0",
    announce_host: Annotated[str, typer.Option(help="Name or address under which others reach this machine.")] = "",
    peers: Annotated[
        str, typer.Option(metavar="ADDRESSES", help="Nodes of a directory to be part of; commas between them.")
    ] = "",
    state_dir: Annotated[Path | None, typer.Option(help="Folder of the node's key, which its address names.")] = None,
) -> None:
    """Run a node of a public directory of open runs, until Ctrl-C.

    It prints its address. Hosts publish their cards there with
    `potluck host --announce-dht ADDRESS`, and `potluck find ADDRESS` reads them.
    """
    from averaging.open_runs.card_directory import directory_addresses, unfit_directory
    from averaging.system.usual_folders import state_root
    from averaging.trio_errors import run_single_error
    from protocol.errors import ConfigError
    from protocol.identity.identity_file import open_identity

    if peers and (expected := unfit_directory(peers)):
        raise ConfigError("--peers names no nodes of a directory", expected, "see: potluck directory --help")
    others = directory_addresses(peers)
    listen, announce = ways_of(listen_host, port, announce_host)
    with open_identity((state_dir or state_root() / _OF_USER) / "identity") as held:
        from averaging.open_runs.card_network import keep_node

        run_single_error(partial(keep_node, held, listen, announce, others, typer.echo))


def ways_of(listen_host: str, port: int, announce_host: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The multiaddresses to listen on and to announce.

    Raises:
        ConfigError: an address that cannot be listened on or announced, or one to announce without a port.
    """
    from averaging.network.seams.host_names import multiaddress, unfit_to_announce, unfit_to_listen
    from protocol.errors import ConfigError

    for text, expected in (
        (listen_host, unfit_to_listen(listen_host)),
        (announce_host, unfit_to_announce(announce_host)),
    ):
        if text and expected:
            raise ConfigError(f"the address {text!r}", expected, "see: potluck directory --help")
    if announce_host and not port:
        raise ConfigError("--announce-host without a port", "the port that others reach", "set it with --port")
    return (multiaddress(listen_host, port),), ((multiaddress(announce_host, port),) if announce_host else ())
