"""The places of a daemon on this machine, and their sizes. Links are measured themselves, never what they lead to."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.tables import in_bytes, printable

_ABSENT = "not there"


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder of a daemon.

    Attributes:
        what: what lies there, in a few words.
        path: as the daemon would use it.
        num_bytes: of the file, or of all files below the folder; None if nothing is there.
        note: a word on it for people, empty for none.
    """

    what: str
    path: Path
    num_bytes: int | None
    note: str = ""


def measured(what: str, path: Path, note: str = "") -> Place:
    """The place, with its size. Blocks."""
    try:
        if path.is_symlink():
            note = "; ".join(filter(None, (note, f"a link to {os.readlink(path)}")))
        num_bytes, unread = _tree_bytes(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return Place(what, path, None, note)
        num_bytes, unread = 0, 1
    notes = (note, "not all of it can be read" if unread else "")
    return Place(what, path, num_bytes, "; ".join(filter(None, notes)))


def _tree_bytes(path: Path) -> tuple[int, int]:
    """Bytes of a file, or of all files below a folder, and how many folders and files cannot be read."""
    total, unread, waiting = path.lstat().st_size, 0, list[Path]()
    if path.is_dir() and not path.is_symlink():
        total, waiting = 0, [path]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue  # deleted meanwhile
        except OSError:
            unread += 1
    return total, unread


def places_json(by_daemon: Mapping[str, Sequence[Place]]) -> dict[str, object]:
    """For scripts: {"host": [...], "peer": [...]}, each place with "what", "path", "bytes" and "note"."""
    return {
        daemon: [
            {"what": place.what, "path": str(place.path), "bytes": place.num_bytes, "note": place.note}
            for place in places
        ]
        for daemon, places in by_daemon.items()
    }


def places_text(by_daemon: Mapping[str, Sequence[Place]]) -> list[str]:
    """A table for each daemon. The path comes last, whole, so that it can be copied."""
    lines: list[str] = []
    for daemon, places in by_daemon.items():
        lines += [""] * bool(lines) + [f"{daemon}:"]
        cells = [
            (
                place.what,
                _ABSENT if place.num_bytes is None else in_bytes(place.num_bytes),
                f"{place.path}{f' ({place.note})' if place.note else ''}",
            )
            for place in places
        ]
        widths = [max(len(row[column]) for row in cells) for column in (0, 1)]
        lines += [f"  {what:<{widths[0]}}  {size:>{widths[1]}}  {printable(path)}" for what, size, path in cells]
    return lines
