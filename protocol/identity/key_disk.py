"""Whether the disk of a folder can hold a secret: it keeps files to their owner, and it has locks. Disks of cameras, USB sticks and
Windows often cannot, and nothing that is done to the file helps there.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

REMEDY: Final = "choose a folder on another disk with --state-dir"
"""For the user of a disk that cannot."""

EXPECTED: Final = (
    "a disk with file modes and locks, as ext4 has, or one that is mounted for its owner alone (umask=077)"
)


def missing_on_disk(folder: Path) -> str:
    """The end of a sentence about the disk of an existing folder: what it lacks; empty if nothing. Makes a file there and
    removes it. Blocks.

    Raises:
        OSError: no file can be made there.
    """
    tried = folder / f".tried-{os.getpid()}-{secrets.token_hex(4)}"
    descriptor = os.open(tried, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            return "keeps no file modes, so that others can read the key"
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return ""
    except OSError as error:
        return f"has no file locks ({error.strerror})"
    finally:
        os.close(descriptor)
        with suppress(OSError):
            os.unlink(tried)
