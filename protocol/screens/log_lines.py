"""The daemons' log lines: one JSON object a line in the file, one line of words for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from protocol.tables import printable

MAX_LETTERS: Final = 16_384
"""Longest line in a log file: an event with a deep traceback has some thousand letters, and one event must not fill the file."""

_FIRST: Final = ("timestamp", "level", "event", "exception")


def log_line(event: Mapping[str, object]) -> str:
    """One event as JSON; what JSON has no word for is written as Python shows it. A line that would be too long is cut."""
    line = json.dumps(dict(event), default=repr)
    if len(line) <= MAX_LETTERS:
        return line
    kept = {name: str(event.get(name, ""))[:200] for name in ("timestamp", "level", "event")}
    return json.dumps(kept | {"cut": line[: MAX_LETTERS // 2]})


def readable(line: str) -> list[str]:
    """A line of the file for people: time, level, event, the rest by name; a traceback on lines of its own. What is no JSON
    object, say a line that a full disk cut off, is shown as it is.
    """
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        return [printable(line)]
    rest = [f"{name}={_value(value)}" for name, value in event.items() if name not in _FIRST]
    head = [str(event.get("timestamp", "")), f"{event.get('level', '')!s:<7}", str(event.get("event", ""))]
    lines = [printable(" ".join((*head, *rest)).strip())]
    return lines + ["    " + printable(part) for part in str(event.get("exception") or "").splitlines()]


def _value(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) and " " in value else str(value)
