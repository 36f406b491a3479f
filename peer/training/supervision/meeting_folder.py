"""The folder in which the processes of one replica find each other: private, with a short path, and gone after them."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from peer.training.ranks.rank_group import ORDERS_NAME

PREFIX: Final = "potluck-ranks-"
_HELD_NAME: Final = "held"
"""A file that the daemon keeps locked while it uses the folder."""


def meeting_roots(state_folder: Path | None) -> tuple[Path, ...]:
    """Places for the folder, the best first: the folder for temporary files, the machine's shared memory, the peer's own folder."""
    with suppress(FileNotFoundError):  # no folder takes temporary files
        return _places(Path(tempfile.gettempdir()), state_folder)
    return _places(None, state_folder)


def _places(first: Path | None, last: Path | None) -> tuple[Path, ...]:
    found = (first, Path("/dev/shm"), last.absolute() if last is not None else None)
    return tuple(dict.fromkeys(place for place in found if place is not None))


@contextmanager
def meeting_folder(roots: Sequence[Path]) -> Iterator[Path]:
    """A new, empty folder that only this user can enter, in the first place that can have one. It is removed with the block, and
    those of killed daemons are removed before. Blocks.

    Raises:
        OSError: no place can; it names the reason of each.
    """
    for root in roots:
        _sweep(root)
    folder, held = _made(roots)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _made(roots: Sequence[Path]) -> tuple[Path, int]:
    reasons = []
    for root in roots:
        try:
            return _made_in(root)
        except OSError as error:
            reasons.append(f"{root} ({error.strerror or error})")
    raise OSError(
        errno.ENOENT, f"no folder can hold the sockets of several cards: {', '.join(reasons)}; set TMPDIR to one"
    )


def _made_in(root: Path) -> tuple[Path, int]:
    """A folder in which sockets were tried, and its lock. Raises OSError: it cannot be written, is not private, has too long a
    path, or has no sockets.
    """
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    held: int | None = None
    try:
        held = os.open(folder / _HELD_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.stat().st_mode & 0o077:
            raise OSError(errno.EPERM, "its disk keeps no file modes, so that others could enter")
        with socket.socket(socket.AF_UNIX) as tried:
            tried.bind(str(folder / ORDERS_NAME))
        (folder / ORDERS_NAME).unlink()
    except OSError:
        if held is not None:
            os.close(held)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, held


def _sweep(root: Path) -> None:
    """Remove the folders of daemons that were killed."""
    with suppress(OSError):
        for old in root.glob(f"{PREFIX}*"):
            with suppress(OSError):  # it belongs to somebody else, or is in use
                _sweep_one(old)


def _sweep_one(old: Path) -> None:
    if old.is_symlink() or old.stat().st_uid != os.getuid():
        return
    held = os.open(old / _HELD_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        os.close(held)
