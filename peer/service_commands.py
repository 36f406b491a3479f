"""The commands for a daemon without a terminal: stop, health, and a service of the user's systemd."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Protocol

import typer

from averaging.host.hints import with_folder
from protocol.tables import examples

_PANEL: Final = "For volunteers"
_StateDir = Annotated[Path | None, typer.Option(help="Folder of identity and progress, as at `potluck join`.")]


class LocalHost(Protocol):
    """The host of this machine, as `potluck stop` uses it."""

    def host_folder(self, state_dir: Path | None, /) -> Path:
        """Its state folder: the given one, or the configured one."""
        ...

    def is_running(self, folder: Path, /) -> bool:
        """Whether a host runs from the folder."""
        ...

    def stop_host(self, folder: Path, /) -> str:
        """Ask it to leave, and wait until it has. Returns one line for its owner."""
        ...


def add_service_commands(app: typer.Typer, load_host: Callable[[], LocalHost]) -> None:
    """Add the commands to the command line. `load_host` imports the access to this machine's host."""
    app.command(rich_help_panel="For both", epilog=examples("potluck stop", "potluck stop --state-dir STATE_DIR"))(
        _stop_command(load_host)
    )
    app.command(epilog=examples("potluck health", "potluck health --state-dir STATE_DIR"))(_health_command(load_host))
    service = typer.Typer(help="Run the peer as a service of your own systemd, without root.", no_args_is_help=True)
    service.command("install", epilog=examples("potluck service install"))(service_install)
    service.command("remove", epilog=examples("potluck service remove"))(service_remove)
    app.add_typer(service, name="service", rich_help_panel=_PANEL)


def _folder(state_dir: Path | None) -> Path:
    from peer.settings.config import PeerConfig

    return PeerConfig.load({"state_dir": state_dir}).state_dir


def _stop_command(load_host: Callable[[], LocalHost]) -> Callable[..., None]:
    def stop(
        state_dir: Annotated[
            Path | None, typer.Option(help="Folder of the peer or host to stop; both usual ones if not given.")
        ] = None,
    ) -> None:
        """Ask the running peer to leave cleanly, and wait until it has; where no peer runs, the running host.

        The state stays: `potluck join` or `potluck host` goes on.
        """
        from peer.owner.running_peer import running_peer, stop_peer
        from protocol.errors import UnreachableError

        hosts, folder = load_host(), _folder(state_dir)
        host_folder = hosts.host_folder(state_dir)
        has_host = hosts.is_running(host_folder)
        if running_peer(folder) is not None and (folder != host_folder or not has_host):
            typer.echo(stop_peer(folder))
            if has_host:
                typer.echo(with_folder(f"the host in {host_folder} runs on; `potluck stop` again ends it"))
        elif has_host:
            typer.echo(hosts.stop_host(host_folder))
        else:
            where = f"from {folder}" if folder == host_folder else f"from {folder}, and no host from {host_folder}"
            raise UnreachableError(f"no peer runs {where}", "a running peer or host", "see: potluck status")

    return stop


def _health_command(load_host: Callable[[], LocalHost]) -> Callable[..., None]:
    def health(
        state_dir: Annotated[
            Path | None, typer.Option(help="State folder of a running peer or host; both usual ones if not given.")
        ] = None,
    ) -> None:
        """Ask the peer that runs on this machine whether it is well, or the host where no peer runs: 0 if it is, 5 if nobody answers.

        A peer that waits for others, or for its host, is well.
        """
        from averaging.host.http_client import ask_health
        from peer.owner.running_peer import running_peer

        folder = state_dir
        if folder is None:
            folder, hosts = _folder(None), load_host()
            host_folder = hosts.host_folder(None)
            if running_peer(folder) is None and hosts.is_running(host_folder):
                folder = host_folder
        typer.echo(f"ok: {ask_health(folder)}")

    return health


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
