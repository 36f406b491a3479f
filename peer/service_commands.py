"""The volunteer's commands for a peer without a terminal: stop, and a service of the user's systemd."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from protocol.tables import examples

_PANEL: Final = "For volunteers"
_StateDir = Annotated[Path | None, typer.Option(help="Folder of identity and progress, as at `potluck join`.")]


def add_service_commands(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(rich_help_panel=_PANEL, epilog=examples("potluck stop"))(stop)
    service = typer.Typer(help="Run the peer as a service of your own systemd, without root.", no_args_is_help=True)
    service.command("install", epilog=examples("potluck service install"))(service_install)
    service.command("remove", epilog=examples("potluck service remove"))(service_remove)
    app.add_typer(service, name="service", rich_help_panel=_PANEL)


def _folder(state_dir: Path | None) -> Path:
    from peer.settings.config import PeerConfig

    return PeerConfig.load({"state_dir": state_dir}).state_dir


def stop(state_dir: _StateDir = None) -> None:
    """Ask the running peer to leave cleanly, and wait until it has. Its state stays, and `potluck join` goes on."""
    from peer.owner.running_peer import stop_peer

    typer.echo(stop_peer(_folder(state_dir)))


def service_install(
    run: Annotated[str, typer.Option("--run", help="Name or id of a joined run; the last one if not given.")] = "",
    state_dir: _StateDir = None,
) -> None:
    """Start the peer with your session from now on, and again after a failure. Join a run once before."""
    from peer.membership.named_run import find_run
    from peer.owner.detached import own_command
    from peer.owner.user_service import install_service, unit_path, unit_text

    folder = _folder(state_dir)
    find_run(folder, run)
    typer.echo("\n".join(install_service(unit_text(own_command(), folder, run), unit_path())))


def service_remove() -> None:
    """Stop the service and delete its unit. The peer's state stays."""
    from peer.owner.user_service import remove_service, unit_path

    typer.echo(remove_service(unit_path()))
