"""A daemon's log on disk: JSON lines in a few files of a bounded size, mode 0600. A full disk costs lines and stops nobody."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import IO, Final

from protocol.screens.log_lines import log_line

LOG_FOLDER: Final = "logs"
"""In a daemon's state folder."""

FILE_BYTES: Final = 5_000_000
"""A day of a busy peer at the level info is about a megabyte; a file of five opens in any editor."""

NUM_FILES: Final = 4
"""Kept in all, the one being written included: 20 MB are nothing beside a model."""

_MAX_PART_BYTES: Final = 1 << 20
"""A file without line ends is no log of ours: what was read of it so far is taken as a line."""


def log_files(path: Path) -> tuple[Path, ...]:
    """The files that a log may consist of, the newest first: `peer.log`, `peer.log.1`, ..."""
    return (path, *(path.with_name(f"{path.name}.{number}") for number in range(1, NUM_FILES)))


class LogFile:
    """Writes lines and makes room for them; usable from any thread. Opens nothing before the first line."""

    def __init__(self, path: Path, file_bytes: int = FILE_BYTES) -> None:
        self._path = path
        self._file_bytes = file_bytes
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._size_bytes = 0
        self._lost = 0
        self._is_torn = False

    def write(self, line: str) -> None:
        """Write one line. What cannot be written is lost and counted: the next line that can be is preceded by their number."""
        with self._lock:
            try:
                if self._lost:
                    self._append(log_line({"event": "log_lines_lost", "lines": self._lost}))
                    self._lost = 0
                self._append(line)
            except OSError:
                self._lost += 1
                self._close()

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        with self._lock:
            self._close()

    def _append(self, line: str) -> None:
        data = ("\n" if self._is_torn else "").encode("ascii") + line.encode("utf8", "backslashreplace") + b"\n"
        descriptor = self._open(len(data))
        written = os.write(descriptor, data)
        self._size_bytes += written
        self._is_torn = written < len(data)
        if self._is_torn:
            raise OSError("the disk is full")

    def _open(self, more_bytes: int) -> int:
        """The file with room for `more_bytes`, rotated first where it has none."""
        if self._descriptor is not None and self._size_bytes + more_bytes > self._file_bytes:
            self._close()
        if self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with suppress(FileNotFoundError):
                if self._path.stat().st_size + more_bytes > self._file_bytes:
                    self._rotate()
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._size_bytes = os.fstat(self._descriptor).st_size
        return self._descriptor

    def _rotate(self) -> None:
        files = log_files(self._path)
        for newer, older in reversed(list(pairwise(files))):
            with suppress(FileNotFoundError):
                os.replace(newer, older)

    def _close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):
                os.close(descriptor)


@contextmanager
def keep_log(path: Path) -> Iterator[None]:
    """Everything that is logged goes to the file, too, until the end; what standard error shows stays as it is."""
    import structlog

    file = LogFile(path)

    def keep(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        # on a copy: the renderer for standard error shows tracebacks in its own way
        file.write(log_line(structlog.processors.format_exc_info(logger, method, dict(event))))
        return event

    before = structlog.get_config()
    processors = list(before["processors"])
    structlog.configure(processors=[*processors[:-1], keep, *processors[-1:]])
    try:
        yield
    finally:
        structlog.configure(processors=processors)
        file.close()


class LogTail:
    """Reads a log as it grows, across rotation; a file that is gone or cannot be read is passed over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._part = b""

    def new(self) -> list[str]:
        """The whole lines that came since the last call, all that there are at the first."""
        data = self._part + self._rest()
        for path in self._later_files():
            with suppress(OSError):
                opened = path.open("rb")
                self.close()
                self._file = opened
                data += self._rest()
        *lines, self._part = data.split(b"\n")
        if len(self._part) > _MAX_PART_BYTES:
            lines, self._part = [*lines, self._part], b""
        return [line.decode("utf8", "replace") for line in lines if line]

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rest(self) -> bytes:
        try:
            return self._file.read() if self._file is not None else b""
        except OSError:
            return b""

    def _later_files(self) -> list[Path]:
        """Files that follow the one that is open, oldest first: more than one where it was rotated twice since."""
        oldest_first = [path for path in reversed(log_files(self._path)) if path.is_file()]
        if self._file is None:
            return oldest_first
        here = os.fstat(self._file.fileno())
        for place, path in enumerate(oldest_first):
            with suppress(OSError):
                if os.path.samestat(path.stat(), here):
                    return oldest_first[place + 1 :]
        return oldest_first
