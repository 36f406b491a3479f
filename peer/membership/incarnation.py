"""The disk's incarnation number, and the check that no unit's votes were lost.

A peer that lost a unit's log does not know its votes there and must not vote there again under the same number (R3). One number
covers all units. It is stored in the run's folder and in the folder of each unit that was ever held. If one of these files is
missing, votes may be lost, and the peer draws a new number.

Rules: R3 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from averaging.storage.file_storage import sync_folder
from peer.membership.saved_membership import write_durably
from protocol.errors import StorageError
from protocol.ids import UnitName
from protocol.tensors.model_config import WHOLE_MODEL

_NUMBER: Final = "incarnation"
_UNITS: Final = "units_held"


def take_incarnation(folder: Path) -> int:
    """The incarnation number of this run's folder, 1 to 2^63. Drawn if there is none yet, or if a unit's folder was lost. Blocks.

    Raises:
        StorageError: the folder cannot be read or written.
    """
    try:
        number, units = _known_number(folder), _units(folder)
        if number is None or any(_read(folder / unit) != number for unit in units):
            number = 1 + secrets.randbelow((1 << 63) - 1)
        if _read(folder) != number:
            # After a crash before all files are written, the next start draws again.
            for place in (folder, *(folder / unit for unit in units)):
                write_durably(place / _NUMBER, str(number).encode("ascii"))
        return number
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{folder / _NUMBER} or a copy in a unit's folder cannot be read: {error}",
            "a number",
            "remove it: the peer then counts as one with a new disk",
        ) from error


def forget_incarnation(folder: Path) -> None:
    """Durably invalidate the number before votes of any unit are given up. The next `take_incarnation` draws another one in any
    case. Blocks; raises OSError.
    """
    for path in (folder / _NUMBER, *folder.glob(f"*/{_NUMBER}")):
        path.unlink(missing_ok=True)
        sync_folder(path.parent)


def remember_unit(folder: Path, unit: UnitName) -> None:
    """Register a unit before the first vote on it. From then on, losing its folder means losing votes. Blocks.

    Raises:
        StorageError: the folder cannot be read or written.
    """
    try:
        units = _units(folder)
        if unit in units:
            return
        write_durably(folder / unit / _NUMBER, (folder / _NUMBER).read_bytes())
        write_durably(folder / _UNITS, "\n".join((*units, unit)).encode("ascii"))
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{folder / _UNITS} cannot be written: {error}", "a writable folder with space", "free some space"
        ) from error


def _known_number(folder: Path) -> int | None:
    """The stored number. Old runs of one unit store it in that unit's folder only."""
    number = _read(folder)
    return _read(folder / WHOLE_MODEL) if number is None else number


def _read(folder: Path) -> int | None:
    path = folder / _NUMBER
    return int(path.read_text()) if path.exists() else None


def _units(folder: Path) -> tuple[UnitName, ...]:
    path = folder / _UNITS
    return tuple(map(UnitName, path.read_text().split())) if path.exists() else ()
