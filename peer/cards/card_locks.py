"""One peer a card: a lock file for each card's UUID, in a folder of this user that the system clears when it starts.

A lock ends with the process that holds it, however that ends. Peers of other users are not seen.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from protocol.errors import MachineError

_FOLDER: Final = "potluck-cards"


def lock_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of this user's locks. It may not exist yet."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        return Path(runtime, _FOLDER)
    return Path(tempfile.gettempdir(), f"{_FOLDER}-{os.getuid()}")


class CardLocks:
    """The cards that this process holds. Close it at the end of the peer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def take(self, uuids: Iterable[str]) -> frozenset[str]:
        """Take these cards. Returns those that another peer holds.

        Raises:
            MachineError: the folder of locks belongs to somebody else.
        """
        wanted = [uuid for uuid in uuids if uuid and uuid not in self._held]
        if wanted:
            self._make_folder()
        return frozenset(uuid for uuid in wanted if not self._take(uuid))

    def release(self, uuids: Iterable[str]) -> None:
        """Let others have these cards."""
        for uuid in uuids:
            descriptor = self._held.pop(uuid, None)
            if descriptor is not None:
                os.close(descriptor)

    def close(self) -> None:
        """Let others have all of them."""
        self.release(list(self._held))

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = os.lstat(self._folder)
        except OSError as error:
            raise self._wrong(error.strerror or str(error)) from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise self._wrong("others may write there")

    def _take(self, uuid: str) -> bool:
        path = self._folder / f"{uuid.replace('/', '-')}.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise self._wrong(error.strerror or str(error)) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            os.close(descriptor)
            raise self._wrong(error.strerror or str(error)) from error
        self._held[uuid] = descriptor
        return True

    def _wrong(self, reason: str) -> MachineError:
        return MachineError(
            f"cards cannot be locked in {self._folder}: {reason}",
            "a private folder on a disk with file locks",
            "set XDG_RUNTIME_DIR to one",
        )
