"""The local host for `potluck status`, `peers` and `rounds`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from averaging.host.daemon_views import DaemonView, Row, rows_of
from averaging.host.used_settings import used_settings
from protocol.errors import UnreachableError

LOG_NAME: Final = "host.log"
"""File in the log folder of the state folder."""


def folder_of(state_dir: Path | None) -> Path:
    """The host's folder: as given, or as configured.

    Raises:
        ConfigError: a setting is invalid.
    """
    from coordinator.policy.config import HostConfig

    return HostConfig.load({"state_dir": state_dir}).state_dir


def is_here(folder: Path) -> bool:
    """Whether a run was ever hosted from the folder."""
    from coordinator.ledger.ledger import LEDGER_FILE

    return (folder / LEDGER_FILE).exists()


def read_daemon(folder: Path) -> DaemonView:
    """One snapshot of the host of `folder`. Blocks, at most some seconds."""
    from coordinator.run.hosted_folder import fetch_rows, fetch_status
    from coordinator.status.status_text import status_lines

    try:
        status = fetch_status(folder)
    except UnreachableError as error:
        hosted = runs(folder)
        is_over = any(row["phase"] == "finished" for row in hosted)
        found = f"{error.found}: its run is complete" if is_over else error.found
        remedy = f"to show its page and checkpoints again, {error.remedy}" if is_over else error.remedy
        damage = [str(row["note"]) for row in hosted if row["note"]]  # it may be why it does not run
        note = "; ".join(filter(None, [found, remedy, *damage]))
        return DaemonView("host", str(folder), is_running=False, note=note, status={})
    peers: Sequence[Row] = [*rows_of(status.get("peers")), *rows_of(status.get("away"))]
    rounds: Sequence[Row] = rows_of(status.get("rounds"))
    with suppress(UnreachableError):  # it left meanwhile: what it said first stands
        if len(peers) < _count(status, "num_peers") + _count(status, "num_away"):
            peers = fetch_rows(folder, "peers")
        if len(rounds) < _count(status, "num_rounds"):
            rounds = fetch_rows(folder, "rounds")
    return DaemonView("host", str(folder), True, "", status, tuple(status_lines(status)), peers, rounds)


def _count(status: Row, name: str) -> int:
    value = status.get(name)
    return value if isinstance(value, int) else 0


def runs(folder: Path) -> list[Row]:
    """The run that was hosted from a folder, as far as it can be read; empty if there is none. Blocks."""
    from coordinator.run.hosted_runs import hosted_runs

    return hosted_runs(folder)


def settings(folder: Path) -> dict[str, object]:
    """The settings of the folder's running or last host; those that one would use, from all sources, if none ran yet.

    Raises:
        ConfigError: a setting is invalid.
    """
    from coordinator.policy.config import HostConfig

    used = used_settings(folder)
    return used if used is not None else HostConfig.load({"state_dir": folder}).model_dump(mode="json")


def secrets(folder: Path) -> list[bytes]:
    """Secrets that must never leave the machine: the identity and the authority's key. Unreadable files are skipped."""
    from coordinator.run.run_files import AUTHORITY_KEY, IDENTITY_FILE
    from protocol.identity.identity_file import secrets_of

    found = list(secrets_of(folder / IDENTITY_FILE))
    with suppress(OSError):
        found.append((folder / AUTHORITY_KEY).read_bytes())
    return found
