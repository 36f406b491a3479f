"""The state folder of a host: its path, whether a run is hosted there, and the host's status."""

from __future__ import annotations

from pathlib import Path

from protocol.errors import ConfigError, StorageError, UnreachableError


def host_folder(state_dir: Path | None) -> Path:
    """The given folder, or the one in the settings."""
    from coordinator.policy.config import HostConfig

    return HostConfig.load({"state_dir": state_dir}).state_dir


def require_run(folder: Path) -> Path:
    """Path of the ledger in a host's folder.

    Raises:
        ConfigError: no run was ever hosted from there.
    """
    from coordinator.ledger.ledger import LEDGER_FILE

    if not (folder / LEDGER_FILE).exists():
        raise ConfigError(
            f"no run is hosted from {folder}",
            "the folder of a hosted run",
            "start one with `potluck host run.toml`, or name its folder with --state-dir",
        )
    return folder / LEDGER_FILE


def fetch_status(state_dir: Path | None) -> dict[str, object]:
    """The running host's /api/status.

    Raises:
        ConfigError: no run was ever hosted from there.
        UnreachableError: the host is not running.
    """
    from averaging.host.http_client import get_json, read_status_address

    folder = host_folder(state_dir)
    require_run(folder)
    try:
        return get_json(read_status_address(folder) + "/api/status")
    except (UnreachableError, ConfigError, StorageError) as error:
        raise UnreachableError(f"no host runs from {folder}", "", "start it with: potluck host run.toml") from error
