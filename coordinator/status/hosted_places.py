"""The files and folders of a host on this machine."""

from __future__ import annotations

from pathlib import Path

from averaging.host.log_file import LOG_FOLDER
from averaging.system.known_places import Place, measured
from coordinator.policy.config import HostConfig
from protocol.errors import ConfigError


def hosted_from(state_dir: Path | None) -> Path | None:
    """The host's folder, as given or as configured; None if no run was ever hosted from there, or its settings cannot work."""
    from coordinator.ledger.ledger import LEDGER_FILE

    try:
        folder = HostConfig.load({"state_dir": state_dir}).state_dir.absolute()
    except ConfigError:
        return None  # every command of the host says so
    return folder if (folder / LEDGER_FILE).exists() else None


def places(state_dir: Path | None) -> list[Place]:
    """The files and folders of this machine's host; none if no run was ever hosted from there. Blocks."""
    from coordinator.ledger.ledger import LEDGER_FILE
    from coordinator.status.local_view import LOG_NAME

    folder, file = hosted_from(state_dir), HostConfig.file()
    if folder is None:
        return []
    return [
        measured("state folder", folder),
        measured("ledger", folder / LEDGER_FILE),
        measured("checkpoints", folder / "checkpoints"),
        measured("packed texts", folder / "data"),
        measured("identity", folder / "identity.key", "keep a copy: the run is yours by it"),
        measured("log", folder / LOG_FOLDER / LOG_NAME),
        *([] if file is None else [measured("settings file", file)]),
    ]
