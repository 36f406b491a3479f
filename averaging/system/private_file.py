"""A small file that only its owner can read."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a line of text whole or not at all, readable by the owner alone. An earlier file is replaced.

    Raises:
        OSError: it cannot be written; the earlier file stays.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf8") as file:
            file.write(text + "\n")
        os.replace(temporary, path)
    finally:
        with suppress(OSError):  # it is gone after a success; a disk that takes no writes keeps it
            temporary.unlink(missing_ok=True)
