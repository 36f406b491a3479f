"""The row of a run's folder in `potluck runs`, put together from parts that may each be damaged. Blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from averaging.storage.file_storage import folder_bytes
from protocol.errors import PotluckError


def run_row(
    folder: Path, names: Sequence[str], parts: Sequence[Callable[[Path], Mapping[str, object]]]
) -> dict[str, object]:
    """A row with "folder", "disk_bytes" and `names`, which the parts fill in. Damaged parts stay None, and "note" says why."""
    row: dict[str, object] = {"folder": str(folder), **dict.fromkeys(names), "disk_bytes": None}
    notes = []
    for part in (*parts, _size):
        try:
            row |= part(folder)
        except PotluckError as error:
            notes.append(error.one_line())
    return row | {"note": "; ".join(notes)}


def _size(folder: Path) -> dict[str, object]:
    return {"disk_bytes": folder_bytes(folder)}
