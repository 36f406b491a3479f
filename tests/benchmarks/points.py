"""The points of a commit at which its opener is killed, and how a benchmark asks a swarm of doomed peers for one of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import trio

from averaging.network.seams.offload import ThreadOffload
from averaging.state.log_entries import LOG_NAME, LoggedBase, LoggedRounds
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage
from protocol.ids import CommitId

DOOM_VARIABLE: Final = "POTLUCK_DOOM"
"""Environment of a doomed peer: the path of its doom file."""
DOOMED_PEER: Final = "tests.benchmarks.doomed_peer"
"""The module to run in the place of potluck."""
STEPS: Final = ("proposed", "settled", "acked", "certified")
SIDES: Final = ("before", "after")


@dataclass(frozen=True, slots=True)
class Point:
    """A step of a commit, and on which side of the durable write that belongs to it."""

    step: str
    side: str

    def __str__(self) -> str:
        return f"{self.step}, {self.side} its fsync"


POINTS: Final = tuple(Point(step, side) for step in STEPS for side in SIDES)


@dataclass(frozen=True, slots=True)
class Struck:
    """The peer that killed itself, and the point: peer id, base commit in hex, Unix time."""

    peer: str
    step: str
    side: str
    base: str
    unix_s: float


class DoomFile:
    """The file that all peers look at. The first process that reaches its point takes it away, so that nobody else is struck."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._struck = path.with_name(path.name + ".struck")

    def arm(self, point: Point) -> None:
        """From now on the next opener that comes there ends there."""
        self._struck.unlink(missing_ok=True)
        ready = self.path.with_name(self.path.name + ".ready")
        ready.write_text(f"{point.step} {point.side}")
        os.replace(ready, self.path)

    def disarm(self) -> None:
        """Nobody is struck any more."""
        self.path.unlink(missing_ok=True)

    def read(self) -> Struck | None:
        """Its outcome."""
        try:
            return Struck(**json.loads(self._struck.read_text()))
        except FileNotFoundError:
            return None

    def is_meant(self, step: str, side: str) -> bool:
        """Whether this is the point."""
        try:
            return self.path.read_text() == f"{step} {side}"
        except FileNotFoundError:
            return False

    def take(self, struck: Struck) -> bool:
        """Say that it is us; False when another process was faster."""
        ready = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        ready.write_text(json.dumps(asdict(struck)))
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        os.replace(ready, self._struck)
        return True


def is_on_disk(state_dir: Path, struck: Struck) -> bool:
    """Whether the folder that a struck peer left behind shows just that point: what was before it is there, what follows is not."""
    logged = trio.run(_load, next(_logs(state_dir)).parent)
    known = logged.bases.get(CommitId(bytes.fromhex(struck.base)), LoggedBase())
    is_promised, is_acked = known.promised is not None, known.acked is not None
    is_certified = any(parent.hex() == struck.base for parent, _ in logged.certificates)
    is_after = struck.side == "after"
    match struck.step:
        case "proposed":
            return is_promised == is_after and not is_acked and not is_certified
        case "settled":
            return is_promised and not is_acked and not is_certified
        # the others' acks may have been enough before our own was written
        case "acked":
            return is_promised and is_acked == is_after
        case _:
            return is_promised and is_certified == is_after


def _logs(state_dir: Path) -> Iterator[Path]:
    return state_dir.rglob(LOG_NAME)


async def _load(folder: Path) -> LoggedRounds:
    return await UnitLog(FileStorage(folder, ThreadOffload())).load()
