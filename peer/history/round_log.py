"""The rounds of a run as this peer saw them, on its disk over restarts: one line of JSON each, in the order in which they came.

A line has "t" (unix seconds), and of a round "i" (its number), "all" (the run's tokens so far), "n" (its members), "own" (this
peer's credited tokens) and "loss" (its training loss, nats a byte). A line with "trained" gives seconds of training since the line
before. The first line names the run. The log stays when a run is forgotten. A full disk costs lines and stops nobody.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import trio

from peer.status.status import PeerStatus
from peer.status.status_board import SeenRound, StatusBoard
from protocol.tables import number

log = structlog.get_logger()

HISTORY_FOLDER: Final = "history"
"""In the state folder of a peer."""

WRITE_EVERY_S: Final = 5.0
_TRAINED_EVERY_S: Final = 600.0
"""Training without a round is written this often: a killed peer loses at most so much of its time."""

_MAX_LINE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class TrainedTime:
    """Seconds of training that ended about then."""

    unix_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run's log. `rounds` ascend; of a round on several lineages the one that was followed last is there."""

    run: str
    folder_name: str
    rounds: tuple[SeenRound, ...]
    trained: tuple[TrainedTime, ...]


class RoundLog:
    """Writes the log of one run. Makes the file with its first line."""

    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._run = run
        self._is_refused = False

    def write(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Append lines. Blocks. A failure is logged once."""
        text = "".join(json.dumps(dict(row)) + "\n" for row in rows)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                begin = json.dumps({"run": self._run}) + "\n" if not size else ""
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    begin = "\n"  # a power cut has left half a line
                file.write((begin + text).encode("ascii"))
        except OSError as error:
            if not self._is_refused:
                log.warning("history_not_written", path=str(self._path), reason=error.strerror)
            self._is_refused = True


async def recall_history(path: Path, board: StatusBoard) -> None:
    """Tell the board what earlier starts of this peer gave to the run."""
    if path.is_file():
        earlier = await trio.to_thread.run_sync(read_history, path)
        board.rounds.given.begin_with((seen.index, seen.own_tokens) for seen in earlier.rounds)


async def keep_history(path: Path, board: StatusBoard, read_status: Callable[[], PeerStatus]) -> None:
    """Write the rounds that the board sees, and the time of training, until cancelled; then what is left."""
    file, trained_s, written_s, last_s = RoundLog(path, board.run_name), 0.0, 0.0, board.clock.monotonic_s()

    def rows(status: PeerStatus) -> list[dict[str, object]]:
        fresh, board.rounds.given.fresh = board.rounds.given.fresh, []
        found = [_row(seen, status.loss) for seen in fresh]
        if trained_s:
            found.append({"t": round(board.clock.unix_s()), "trained": round(trained_s, 1)})
        return found

    try:
        while True:
            await trio.sleep(WRITE_EVERY_S)
            status, now_s = read_status(), board.clock.monotonic_s()
            if status.state == "training" and status.worker_state == "training":
                trained_s += now_s - last_s
            last_s = now_s
            if board.rounds.given.fresh or (trained_s and now_s - written_s > _TRAINED_EVERY_S):
                found, trained_s, written_s = rows(status), 0.0, now_s
                await trio.to_thread.run_sync(file.write, found)
    finally:
        if left := rows(read_status()):
            file.write(left)


def _row(seen: SeenRound, loss_nats: float | None) -> dict[str, object]:
    row: dict[str, object] = {
        "t": round(seen.unix_s),
        "i": seen.index,
        "all": seen.total_tokens,
        "n": seen.num_members,
        "own": seen.own_tokens,
    }
    return row if loss_nats is None else {**row, "loss": round(loss_nats, 5)}


def read_history(path: Path) -> RunHistory:
    """The log of a run. Lines that are damaged are left out, and a file that cannot be read is an empty log. Blocks."""
    run, rounds, trained = "", list[SeenRound](), list[TrainedTime]()
    for row in _rows(path):
        if isinstance(row.get("run"), str):
            run = str(row["run"])
        unix_s, seconds = number(row.get("t")), number(row.get("trained"))
        seen = _seen(row, unix_s)
        if seen is not None:
            while rounds and rounds[-1].index >= seen.index:  # another lineage, or a round that came again
                rounds.pop()
            rounds.append(seen)
        elif unix_s is not None and seconds is not None and seconds >= 0:
            trained.append(TrainedTime(unix_s, seconds))
    return RunHistory(run, path.stem, tuple(rounds), tuple(trained))


def _rows(path: Path) -> Iterable[dict[str, object]]:
    try:
        with path.open("rb") as file:
            while line := file.readline(_MAX_LINE_BYTES):
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(found, dict):
                    yield found
    except OSError as error:
        log.warning("history_not_read", path=str(path), reason=error.strerror)


def _seen(row: Mapping[str, object], unix_s: float | None) -> SeenRound | None:
    counts = [row.get(name) for name in ("i", "all", "n", "own")]
    index, total, members, own = (c if type(c) is int and c >= 0 else -1 for c in counts)
    if unix_s is None or min(index, total, members, own) < 0:
        return None
    return SeenRound(unix_s, index, total, members, own, number(row.get("loss")))


def read_histories(state_dir: Path) -> list[RunHistory]:
    """The logs of all runs, those of forgotten ones among them, the one that was seen last at the end. Blocks."""
    found = [read_history(path) for path in sorted((state_dir / HISTORY_FOLDER).glob("*.jsonl"))]
    return sorted((each for each in found if each.rounds or each.trained), key=_last_s)


def _last_s(history: RunHistory) -> float:
    rounds, trained = history.rounds[-1:], history.trained[-1:]
    return max([0.0, *(seen.unix_s for seen in rounds), *(each.unix_s for each in trained)])


def history_path(run_folder: Path) -> Path:
    """The log of the run that is kept in this folder."""
    return run_folder.parent.parent / HISTORY_FOLDER / f"{run_folder.name}.jsonl"
