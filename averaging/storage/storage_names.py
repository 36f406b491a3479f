"""The file names that a Storage takes: relative, plain letters, nothing that leaves its folder."""

from __future__ import annotations

import re
from typing import Final

from protocol.errors import LocalProtocolError

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


def check_name(name: str) -> str:
    """Check a name and return it.

    Raises:
        LocalProtocolError: empty, absolute, hidden, or with other letters.
    """
    if not _NAME.fullmatch(name):
        raise LocalProtocolError(f"file name {name!r}", "letters, digits, '.', '_', '-' and '/' between parts")
    return name
