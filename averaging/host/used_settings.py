"""The settings with which a daemon was started last, in its state folder: a bug report shows them, whatever is configured since."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from protocol.errors import StorageError

SETTINGS_FILE: Final = "settings_in_use.json"
_MAX_BYTES: Final = 1 << 20


def remember_settings(folder: Path, values: Mapping[str, object]) -> None:
    """Record the settings of a daemon that starts. Blocks.

    Raises:
        StorageError: the folder cannot be written.
    """
    path = folder / SETTINGS_FILE
    temporary = path.with_suffix(".unfinished")
    try:
        temporary.write_text(json.dumps(dict(values), indent=1) + "\n", encoding="utf8")
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror})", "a writable state folder") from error


def used_settings(folder: Path) -> dict[str, object] | None:
    """The settings of the running or last daemon of a folder; None if none are recorded, or they cannot be read. Blocks."""
    try:
        with (folder / SETTINGS_FILE).open("rb") as file:
            found = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
