"""The files and folders of a peer on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from averaging.host.log_file import LOG_FOLDER
from averaging.host.used_settings import SETTINGS_FILE
from averaging.system.known_places import Place, measured
from peer.history.round_log import HISTORY_FOLDER
from peer.membership.named_run import run_name
from peer.membership.saved_membership import last_run_folder, run_folders
from peer.owner.user_service import unit_path
from peer.profile.profile_files import PROFILE_FOLDER
from peer.settings.config import PeerConfig
from peer.status.local_view import LOG_NAME
from peer.training.replica.compile_folder import COMPILE_FOLDER
from protocol.errors import ConfigError
from protocol.tables import printable

DATA: Final = "data"
IDENTITY: Final = "identity"


def peer_places(state_dir: Path | None) -> list[Place]:
    """The files and folders of this machine's peer, whether they are there or not. With settings that cannot work only those that
    do not depend on them. Blocks.
    """
    file, unit = PeerConfig.file(), measured("service of the user", unit_path())
    try:
        folder = PeerConfig.load({"state_dir": state_dir}).state_dir.absolute()
    except ConfigError as error:
        note = error.one_line()
        return [*([] if file is None else [measured("settings file", file, note)]), unit]
    settings = [] if file is None else [measured("settings file", file)]
    return [measured("state folder", folder), *of_folder(folder), *settings, unit]


def of_folder(folder: Path) -> list[Place]:
    """The parts of a peer's state folder. Blocks."""
    last = last_run_folder(folder)
    runs = [
        measured(f"run {printable(run_name(path) or '?')}", path, "the last one" if path == last else "")
        for path in run_folders(folder)
    ]
    return [
        *runs,
        measured("data cache", folder / DATA),
        measured("history", folder / HISTORY_FOLDER),
        measured("compiled code", folder / COMPILE_FOLDER, "may be deleted"),
        measured("profile", folder / PROFILE_FOLDER, "may be deleted"),
        measured("identity", folder / IDENTITY, "keep a copy: it is you"),
        measured("log", folder / LOG_FOLDER / LOG_NAME),
        measured("settings of the last start", folder / SETTINGS_FILE),
    ]
