"""The owner's pause, a file in the peer's state folder. `potluck pause` writes it; the daemon reads it every second.

A file, not a network interface: only the owner can write the folder, no web page can reach it, and it survives restarts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from averaging.system.private_file import write_private
from peer.owner.controls_core import OwnerPause
from protocol.errors import ConfigError, StorageError

PAUSE_FILE: Final = "pause.json"
MAX_FILE_BYTES: Final = 1000
"""Our own file is far smaller. A larger one was not written by us."""

LATEST_UNIX_S: Final = 253_000_000_000
"""In the year 9987: about the latest date that can be shown."""


class _Pause(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    until_unix_s: Annotated[float, Field(ge=0, lt=LATEST_UNIX_S)] | None


def write_pause(state_dir: Path, pause: OwnerPause) -> None:
    """Stop training from now on, also after a restart. Writes the file whole or not at all.

    Raises:
        ConfigError: no peer has run from `state_dir`. StorageError: it cannot be written.
    """
    _check_peer(state_dir)
    try:
        write_private(state_dir / PAUSE_FILE, _Pause(until_unix_s=pause.until_unix_s).model_dump_json())
    except OSError as error:
        raise StorageError(
            f"{state_dir} cannot be written: {error.strerror}", "", "pause from its owner's account"
        ) from error


def remove_pause(state_dir: Path) -> bool:
    """End the pause. Returns whether there was one.

    Raises:
        ConfigError: no peer has run from `state_dir`. StorageError: the file cannot be removed.
    """
    _check_peer(state_dir)
    try:
        (state_dir / PAUSE_FILE).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(
            f"{state_dir / PAUSE_FILE} cannot be removed: {error.strerror}", "", "resume from its owner's account"
        ) from error
    return True


def read_pause(state_dir: Path) -> OwnerPause | None:
    """The pause in force, None without one. An invalid file counts as a pause, because somebody wanted one."""
    path = state_dir / PAUSE_FILE
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        return OwnerPause(damage=f"the pause file {path} cannot be read ({error.strerror})")
    try:
        if len(data) <= MAX_FILE_BYTES:
            return OwnerPause(_Pause.model_validate_json(data).until_unix_s)
    except ValidationError:
        pass
    return OwnerPause(damage=f"the pause file {path} makes no sense")


def _check_peer(state_dir: Path) -> None:
    if not (state_dir / "identity").exists():
        raise ConfigError(
            f"no peer has run from {state_dir}",
            "the folder of a peer that has joined before",
            "name it with --state-dir, as at `potluck join`",
        )
