"""The number under which this disk votes, and what shows that the votes of none of its units are lost.

A peer that lost the log of a unit does not know what it voted there, and must not vote there again (R3).
One number stands for all units. It lies in the run's folder and, once more, in the folder of each unit that was ever held: where one
of these is gone, so may be that unit's votes, and the peer comes back under another number.

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
    """The number of the disk with this run's folder, 1 to 2^63; drawn where there is none yet, or where a unit's folder was lost.
    Blocks.

    Raises:
        StorageError: the folder cannot be read or written.
    """
    try:
        number, units = _known_number(folder), _units(folder)
        if number is None or any(_read(folder / unit) != number for unit in units):
            number = 1 + secrets.randbelow((1 << 63) - 1)
        if _read(folder) != number:
            # a crash before all have it draws once more at the next start
            for place in (folder, *(folder / unit for unit in units)):
                write_durably(place / _NUMBER, str(number).encode("ascii"))
        return number
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{folder / _NUMBER} or one beside it cannot be read: {error}",
            "a number",
            "remove it: the peer then counts as one with a new disk",
        ) from error


def forget_incarnation(folder: Path) -> None:
    """Durably, before votes of any unit are given up: whatever comes after, the next `take_incarnation` draws another number. Blocks;
    raises OSError.
    """
    for path in (folder / _NUMBER, *folder.glob(f"*/{_NUMBER}")):
        path.unlink(missing_ok=True)
        sync_folder(path.parent)


def remember_unit(folder: Path, unit: UnitName) -> None:
    """Before the first vote on a unit: from now on the loss of its folder is the loss of votes. Blocks.

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
    """As it is kept, or as runs of one unit had it before: in that unit's folder alone."""
    number = _read(folder)
    return _read(folder / WHOLE_MODEL) if number is None else number


def _read(folder: Path) -> int | None:
    path = folder / _NUMBER
    return int(path.read_text()) if path.exists() else None


def _units(folder: Path) -> tuple[UnitName, ...]:
    path = folder / _UNITS
    return tuple(map(UnitName, path.read_text().split())) if path.exists() else ()
