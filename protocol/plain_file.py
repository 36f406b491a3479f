"""Files that a user names and that are none: found before they are read, for reading one may never end."""

from __future__ import annotations

import stat
from pathlib import Path

from protocol.errors import ConfigError


def check_plain_file(path: Path, expected: str, remedy: str = "") -> None:
    """Refuse a pipe, whose reader waits until somebody writes into it, and a device, which may have no end.

    What is not there, is a folder or cannot be looked at is passed: whoever reads it says so in words of its own.

    Raises:
        ConfigError: it is a pipe, a device or a socket.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return
    kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise ConfigError(f"{path} is {kind}", expected, remedy)
