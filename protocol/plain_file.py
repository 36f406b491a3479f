"""Names of files that are pipes or devices: refused before they are read, since reading one may never end."""

from __future__ import annotations

import stat
from pathlib import Path

from protocol.errors import ConfigError


def check_plain_file(path: Path, expected: str, remedy: str = "") -> None:
    """Refuse a pipe, whose reader waits until somebody writes into it, and a device, which may have no end.

    A missing file, a folder and an unreadable one pass: the code that reads it reports them in its own words.

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
