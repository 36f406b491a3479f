"""A daemon's log on disk: JSON lines in a few files of a bounded size, mode 0600. A full disk costs lines and stops nobody."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from logging import LogRecord, makeLogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Final

import structlog

from protocol.tables import printable

LOG_FOLDER: Final = "logs"
"""Name of the folder in a daemon's state folder."""

FILE_BYTES: Final = 5_000_000
"""A busy peer at the level info logs for some days into one file, which opens in any editor."""

NUM_FILES: Final = 4
"""Files kept in all, the one being written included; together they are small compared with a model."""

MAX_LETTERS: Final = 16_384
"""Longest line: an event with a deep traceback has some thousand letters, and one event must not fill the file."""

_MAX_PART_BYTES: Final = 1 << 20
"""A part of a line beyond this is taken as a line: a file without line ends is no log of ours."""

_RENDER: Final = structlog.dev.ConsoleRenderer(
    colors=False, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
)


def log_files(path: Path) -> tuple[Path, ...]:
    """The files that a log may consist of, the newest first: `peer.log`, `peer.log.1`, ..."""
    return (path, *(path.with_name(f"{path.name}.{number}") for number in range(1, NUM_FILES)))


def log_line(event: Mapping[str, object]) -> str:
    """One event as JSON. Values that JSON cannot express are written as Python shows them. A line that would be too long is cut."""
    line = json.dumps(dict(event), default=repr)
    if len(line) <= MAX_LETTERS:
        return line
    kept = {name: str(event.get(name, ""))[:200] for name in ("timestamp", "level", "event")}
    return json.dumps(kept | {"cut": line[: MAX_LETTERS // 2]})


def readable(line: str) -> str:
    """A line of the file as the daemon's terminal shows it, with a traceback below it. Control characters become escapes.

    A line that is no JSON object, such as one cut off by a full disk, is shown as it is.
    """
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        return printable(line)
    traceback = str(event.pop("exception", "")).splitlines()
    shown = {printable(name): printable(value) for name, value in event.items()}
    return "\n".join([str(_RENDER(None, "", shown)), *(f"    {printable(part)}" for part in traceback)])


class LogFile(RotatingFileHandler):
    """Writes lines to NUM_FILES files; usable from any thread. Opens nothing before the first line."""

    def __init__(self, path: Path, file_bytes: int = FILE_BYTES) -> None:
        # lines are JSON, so a letter is a byte
        super().__init__(path, maxBytes=file_bytes, backupCount=NUM_FILES - 1, encoding="ascii", delay=True)
        self._lost = 0

    def write(self, line: str) -> None:
        """Write one line. A line that cannot be written is lost and counted; a note with the number precedes the next one."""
        self.handle(makeLogRecord({"msg": line}))

    def emit(self, record: LogRecord) -> None:
        """Writes the record's message; called with the handler's lock held."""
        lost, self._lost = self._lost, 0
        if lost:  # the last line may have been cut off before its end
            record.msg = f"\n{log_line({'event': 'log_lines_lost', 'lines': lost})}\n{record.msg}"
        super().emit(record)
        if self._lost:
            self._lost += lost

    def handleError(self, record: LogRecord) -> None:  # noqa: N802 - logging's name
        """Counts the line, and closes the file, which may be on a full disk."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
            return
        self._lost += 1
        self._let_go()

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        self._let_go()
        super().close()

    def _let_go(self) -> None:
        stream, self.stream = self.stream, None
        with suppress(OSError):
            if stream is not None:
                stream.close()

    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return TextIOWrapper(os.fdopen(descriptor, "ab"), encoding=self.encoding)


def _nobody(_event: Mapping[str, object]) -> None:
    """Hears no events."""


@contextmanager
def keep_log(path: Path, hear: Callable[[Mapping[str, object]], None] = _nobody) -> Iterator[None]:
    """Write everything that is logged to the file, too, until the end; standard error stays as it is. `hear` gets every event, from
    any thread.
    """
    file = LogFile(path)

    def keep(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        # on a copy: the renderer for standard error shows tracebacks in its own way
        hear(event)
        file.write(log_line(structlog.processors.format_exc_info(logger, method, dict(event))))
        return event

    processors = list(structlog.get_config()["processors"])
    structlog.configure(processors=[*processors[:-1], keep, *processors[-1:]])
    try:
        yield
    finally:
        structlog.configure(processors=processors)
        file.close()


class LogTail:
    """Reads a log as it grows, across rotation; a missing or unreadable file is skipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._part = b""

    def new(self) -> list[str]:
        """The whole lines since the last call; the first call returns all lines."""
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
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rest(self) -> bytes:
        try:
            return self._file.read() if self._file is not None else b""
        except OSError:
            return b""

    def _later_files(self) -> list[Path]:
        """Files after the open one, oldest first; more than one if the log was rotated twice since."""
        oldest_first = [path for path in reversed(log_files(self._path)) if path.is_file()]
        if self._file is None:
            return oldest_first
        here = os.fstat(self._file.fileno())
        for place, path in enumerate(oldest_first):
            with suppress(OSError):
                if os.path.samestat(path.stat(), here):
                    return oldest_first[place + 1 :]
        return oldest_first
