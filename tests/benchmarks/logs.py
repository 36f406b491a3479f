"""The peers' logs as events: what the round machine said, and when, to the microsecond."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

_LINE: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+)Z \[\w+ *\] (.*)")
_ROUND: Final = re.compile(r"round +index=(\d+) peer=\S+ reason=(.*)")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line.

    Attributes:
        base: index of the head that the round machine spoke of; None for lines of others.
        text: what it said.
    """

    unix_s: float
    base: int | None
    text: str


class LogFollower:
    """Reads what was appended to a log file since it was last asked. The file stays open: it is asked a thousand times a second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[LogLine] = []
        self._file = path.open("rb", buffering=0)
        self._rest = b""

    def poll(self) -> list[LogLine]:
        """The new lines, which are kept in `lines` as well."""
        data = self._file.read()
        if not data:
            return []
        *whole, self._rest = (self._rest + data).split(b"\n")
        new = [line for raw in whole if (line := parse_line(raw.decode(errors="replace"))) is not None]
        self.lines.extend(new)
        return new

    def close(self) -> None:
        """Read no further."""
        self._file.close()

    def since(self, unix_s: float) -> Iterator[LogLine]:
        """Lines that were read so far and are not older than this, oldest first."""
        begin = len(self.lines)
        while begin and self.lines[begin - 1].unix_s >= unix_s:
            begin -= 1
        return iter(self.lines[begin:])


def parse_line(text: str) -> LogLine | None:
    """A line of structlog's console form; None for anything else that a process prints."""
    match = _LINE.match(text)
    if match is None:
        return None
    unix_s = datetime.fromisoformat(match.group(1) + "+00:00").timestamp()
    spoken = _ROUND.match(match.group(2))
    if spoken is None:
        return LogLine(unix_s, None, match.group(2))
    return LogLine(unix_s, int(spoken.group(1)), spoken.group(2).strip("'\""))
