"""Commands about what lies on this machine: where, and uninstall. They only read before the owner has said yes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from averaging.system.questions import is_agreed
from protocol.tables import examples

if TYPE_CHECKING:
    from averaging.system.known_places import Place


class HostHere(Protocol):
    """A host on this machine."""

    def places(self, state_dir: Path | None, /) -> Sequence[Place]:
        """Its files and folders; none if no run was ever hosted from there."""
        ...

    def hosted_from(self, state_dir: Path | None, /) -> Path | None:
        """Its folder; None if no run was ever hosted from there."""
        ...


def add_installed_commands(app: typer.Typer, load_host: Callable[[], HostHere]) -> None:
    """Add the commands to the command line."""
    app.command("where", rich_help_panel="For both", epilog=examples("potluck where", "potluck where --json"))(
        _where_command(load_host)
    )
    removing = examples("potluck uninstall", "potluck uninstall --yes")
    app.command("uninstall", rich_help_panel="For volunteers", epilog=removing)(_uninstall_command(load_host))


def _where_command(load_host: Callable[[], HostHere]) -> Callable[..., None]:
    def where(
        state_dir: Annotated[
            Path | None, typer.Option("--state-dir", help="A host's or a peer's folder; both usual ones if not given.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    ) -> None:
        """Show where everything lies on this machine, with sizes: state, runs, settings, log, cache, identity, service."""
        from averaging.system.known_places import places_json, places_text
        from peer.installed.places import peer_places

        hosted = load_host().places(state_dir)
        found = {"peer": peer_places(state_dir), **({"host": hosted} if hosted else {})}
        typer.echo(json.dumps(places_json(found)) if as_json else "\n".join(places_text(found)))

    return where


def _uninstall_command(load_host: Callable[[], HostHere]) -> Callable[..., None]:
    def uninstall(
        state_dir: Annotated[
            Path | None, typer.Option("--state-dir", help="The peer's folder, as at `potluck join`.")
        ] = None,
        yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    ) -> None:
        """Remove what a peer has written on this machine: runs, cache, logs, identity and service. Shows it and asks first.

        A running peer leaves with a goodbye. Files that are not Potluck's stay,
        and so do your settings and a run that you host.
        """
        from peer.installed.uninstall import find_installed, plan_lines, uninstall, what_stays
        from peer.owner.user_service import unit_path
        from peer.settings.config import PeerConfig

        host, folder = load_host(), PeerConfig.load({"state_dir": state_dir}).state_dir.absolute()
        found = find_installed(folder, unit_path())
        if found.is_empty:
            typer.echo(f"no peer has written anything to {folder}")
        else:
            typer.echo("\n".join(plan_lines(found)))
            said = uninstall(
                found,
                lambda question: is_agreed(question, yes=yes),
                is_hosted=lambda where: host.hosted_from(where) is not None,
            )
            typer.echo("\n".join(said))
        typer.echo("\n".join(what_stays(host.hosted_from(None))))

    return uninstall
