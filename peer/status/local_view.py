"""The data behind `potluck status`, `peers` and `rounds`, for the peer of this machine, running or not."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from averaging.host.daemon_views import DaemonView, Row, rows_of
from averaging.host.http_client import get_json, read_status_address
from averaging.host.used_settings import used_settings
from peer.status.status import PeerStatus, last_status
from peer.status.status_text import status_lines
from protocol.errors import ConfigError, MachineError, StorageError, UnreachableError

LOG_NAME: Final = "peer.log"
"""In the log folder of the state folder."""


def folder_of(state_dir: Path | None) -> Path:
    """The folder of a peer's state, as given or as configured.

    Raises:
        ConfigError: a setting that cannot work.
    """
    from peer.settings.config import PeerConfig

    return PeerConfig.load({"state_dir": state_dir}).state_dir


def is_here(folder: Path) -> bool:
    """Whether a peer ever ran from the folder."""
    return (folder / "runs").is_dir() or (folder / "identity").exists()


def read_daemon(folder: Path) -> DaemonView:
    """Read the view of the peer in `folder`. Blocks for some seconds at most."""
    try:
        status, peers, rounds = _ask(folder)
        return DaemonView("peer", str(folder), True, "", status, _lines(status), peers, rounds)
    except UnreachableError as away:
        left = last_status(folder)
        note = _note(folder, left) or away.one_line()
        if left is None:
            return DaemonView("peer", str(folder), is_running=False, note=note, status={})
        status = left.model_dump(mode="json")
        return DaemonView("peer", str(folder), False, note, status, _lines(status))


def _ask(folder: Path) -> tuple[Row, list[Row], list[Row]]:
    try:
        url = read_status_address(folder)
        status = get_json(f"{url}/status.json")
        if status.get("peer") != _own_id(folder):  # another daemon took over its port
            raise UnreachableError(f"another daemon answers at {url}")
        peers, rounds = get_json(f"{url}/peers.json"), get_json(f"{url}/rounds.json")
    except (UnreachableError, ConfigError, MachineError) as error:
        from peer.owner.running_peer import join_command

        raise UnreachableError(f"no peer runs from {folder}", "", f"start it with: {join_command(folder)}") from error
    return status, rows_of(peers.get("peers")), rows_of(rounds.get("rounds"))


def _note(folder: Path, left: PeerStatus | None) -> str:
    """Why starting the peer again is of no use; empty where it is."""
    if ban := _ban(folder):
        return f"no peer runs from {folder}: {ban}; ask the host, or join another run"
    if left is not None and left.state == "finished":
        return f"no peer runs from {folder}: its run is complete"
    return ""


def _ban(folder: Path) -> str:
    """That the host of the last run banned this peer; empty if it did not."""
    from peer.membership.own_ban import own_ban
    from peer.membership.saved_membership import last_run_folder

    run_folder = last_run_folder(folder)
    ban = own_ban(folder, run_folder) if run_folder is not None else None
    return "" if ban is None else ban.found


def _own_id(folder: Path) -> str:
    """The peer id of the identity in this folder.

    Raises:
        MachineError, ConfigError: the identity cannot be read.
    """
    from protocol.identity.identity_file import read_identity

    return read_identity(folder / "identity").peer_id


def _lines(status: Row) -> tuple[str, ...]:
    try:
        return tuple(status_lines(PeerStatus.model_validate(status)))
    except ValueError:
        return ("its status comes from another release of potluck; `potluck status --json` shows it unchanged",)


def runs(folder: Path) -> list[Row]:
    """The runs that were joined from a state folder, as far as they can be read. Blocks."""
    from peer.status.joined_runs import joined_runs

    return joined_runs(folder)


def settings(folder: Path) -> dict[str, object]:
    """The settings of this folder's running or last peer; those that one would run with, from all sources, if none ran yet.

    Raises:
        ConfigError: a setting that cannot work.
    """
    from peer.settings.config import PeerConfig

    used = used_settings(folder)
    return used if used is not None else PeerConfig.load({"state_dir": folder}).model_dump(mode="json")


def secrets(folder: Path) -> list[bytes]:
    """Values that must never leave the machine: the identity, the credentials and their keys. Skips unreadable files."""
    from peer.membership.saved_membership import FILE_NAME, load_membership
    from protocol.identity.identity_file import secrets_of

    found = list(secrets_of(folder / "identity"))
    for path in folder.glob(f"runs/*/{FILE_NAME}"):
        with suppress(StorageError):
            saved = load_membership(path.parent)
            if saved is not None:
                found += [saved.credential, saved.tls_key_pem]
    return found
