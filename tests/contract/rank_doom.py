"""The end of one rank at a point of its work: a file names it, and the rank takes the file away as it ends there."""

from __future__ import annotations

import os
import signal
from dataclasses import asdict, dataclass
from json import dumps, loads
from pathlib import Path
from typing import Final, Literal, get_args

DOOM_VARIABLE: Final = "TRAINING_DOOM"
"""Environment of a doomed rank: the file. Variables that begin with POTLUCK_ are kept from training processes."""

Point = Literal["step", "between", "backward", "optimizer", "snapshot", "evaluation"]
How = Literal["kill", "freeze", "memory"]
POINTS: Final[tuple[Point, ...]] = get_args(Point)
HOWS: Final[tuple[How, ...]] = get_args(How)


@dataclass(frozen=True, slots=True)
class RankDoom:
    """Which rank ends, where, and how."""

    rank: int
    point: Point
    how: How

    def announce(self, file: Path) -> None:
        """From now on the rank ends when it comes to the point."""
        new = file.with_suffix(".new")
        new.write_text(dumps(asdict(self)))
        new.rename(file)


def strike(rank: int, point: Point) -> None:
    """Called by a rank at a point: end here if the file says so.

    Raises:
        MemoryError: if it is to run out of memory.
    """
    file = Path(os.environ[DOOM_VARIABLE])
    try:
        found = RankDoom(**loads(file.read_text()))
    except FileNotFoundError:
        return
    if (found.rank, found.point) != (rank, point):
        return
    file.unlink()
    if found.how == "memory":
        raise MemoryError("injected")
    os.kill(os.getpid(), signal.SIGKILL if found.how == "kill" else signal.SIGSTOP)
