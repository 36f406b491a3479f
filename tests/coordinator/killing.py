"""A process that ends itself by SIGKILL at its N-th SQL statement or file operation below one folder.

Counted are SQL statements, and of the house's own code: opening for writing, each write (and half of it), fsync, rename, link, unlink,
rmdir and mkdir. SQLite's own file operations are its own business. A counted write ends the process before it happens; the torn write
ends it in the middle.
"""

from __future__ import annotations

import io
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES: Final = frozenset({"os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir"})


class Killer:
    """Counts operations; the one with number `at` is never reached."""

    def __init__(self, folder: Path, at: int) -> None:
        self._folder = str(folder)
        self._at = at
        self._count = 0

    def count(self) -> None:
        """One operation is about to happen."""
        self._count += 1
        if self._count == self._at:
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def is_next(self) -> bool:
        """Whether the next operation is the last one."""
        return self._count + 1 == self._at

    def _is_ours(self, path: object) -> bool:
        if isinstance(path, int):
            return False
        return os.fsdecode(os.fspath(path)).startswith(self._folder)  # type: ignore[call-overload]

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit event of the interpreter."""
        if event == "open":
            path, _mode, flags = arguments
            if isinstance(flags, int) and flags & _WRITING and self._is_ours(path):
                self.count()
        elif event in _CHANGES and (self._is_ours(arguments[0]) or _has_folder(event, arguments)):
            self.count()


def _has_folder(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a path is meant relative to an open folder, as shutil.rmtree does it."""
    return event in ("os.remove", "os.rmdir") and arguments[1] not in (None, -1)


def _torn(killer: Killer, file: Any) -> Any:
    write = file.write

    def counted(data: Any) -> Any:
        killer.count()
        if killer.is_next:
            write(data[: len(data) // 2])
            file.flush()
        killer.count()
        return write(data)

    file.write = counted
    return file


def _patch(place: object, name: str, wrap: Callable[[Any], Any]) -> None:
    setattr(place, name, wrap(getattr(place, name)))


def arm(folder: Path, at: int) -> Killer:
    """From here on this process counts, and ends at operation number `at`. There is no way back: for a forked child."""
    killer = Killer(folder, at)

    def opening(real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            made = real(file, mode, *arguments, **named)
            return _torn(killer, made) if set(mode) & set("wxa+") else made

        return opened

    def syncing(real: Callable[[int], None]) -> Callable[[int], None]:
        def synced(descriptor: int) -> None:
            killer.count()
            real(descriptor)

        return synced

    def writing(real: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
        def written(descriptor: int, data: Any) -> int:
            killer.count()
            if killer.is_next:
                real(descriptor, data[: len(data) // 2])
            killer.count()
            return real(descriptor, data)

        return written

    def connecting(real: Callable[..., sqlite3.Connection]) -> Callable[..., sqlite3.Connection]:
        def connected(*arguments: Any, **named: Any) -> sqlite3.Connection:
            connection = real(*arguments, **named)
            connection.set_trace_callback(lambda _statement: killer.count())
            return connection

        return connected

    _patch(io, "open", opening)
    _patch(os, "fsync", syncing)
    _patch(os, "write", writing)
    _patch(sqlite3, "connect", connecting)
    sys.addaudithook(killer.hear)
    return killer
