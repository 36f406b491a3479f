"""Pushes each new checkpoint while the host runs. A push that fails is told, tried again later, and stops nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
import trio

from coordinator.push.push_core import PushState
from protocol.errors import MachineError, PotluckError, TemporaryError

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock
    from coordinator.ledger.ledger import CheckpointRow
    from coordinator.push.push import Pushed

_log = structlog.get_logger()

LOOK_EVERY_S: Final = 2.0
LIMIT_S: Final = 600.0
SLOW_BYTES_PER_S: Final = 100_000
"""A push may take the first time, and what this rate needs for its bytes, up and down."""

SCRATCH_FOLDER: Final = "push.unfinished"
"""In the host's folder: an export while it is pushed."""

GoOn = Callable[[], None]
Push = Callable[[str, Path, Path, GoOn], "Pushed"]
"""(address, checkpoint, scratch folder) -> what was pushed, or raises PotluckError. Blocks. Between two blocks it asks whether to go
on, which raises PotluckError where not.
"""

PushScores = Callable[[str, Path, GoOn], None]
"""The same for the scores of a checkpoint that is there."""

T = TypeVar("T")


class Pusher:
    """The pushes to one address.

    Args:
        newest: the newest checkpoints on the followed lineage, oldest first.
        folder: of the checkpoints. scratch: a folder for exports, which is made and removed.
        scores_name: of the file of scores in a checkpoint's folder.
    """

    def __init__(
        self,
        url: str,
        newest: Callable[[], Sequence[CheckpointRow]],
        folder: Path,
        scratch: Path,
        clock: Clock,
        push: Push,
        push_scores: PushScores,
        scores_name: str,
    ) -> None:
        self._newest, self._folder, self._scratch = newest, folder, scratch
        self._clock, self._push, self._push_scores, self._scores_name = clock, push, push_scores, scores_name
        self._is_working = False
        self.state = PushState(url)

    async def run(self) -> None:
        """Push until cancelled."""
        while True:
            await self.push_once()
            await trio.sleep(LOOK_EVERY_S)

    async def push_once(self) -> None:
        """Push the newest checkpoint, or what was scored since, if that is due. Raises nothing of the push."""
        rows, now_s = self._newest(), self._clock.monotonic_s()
        if not rows or self._is_working:  # one that was out of time is at its last block
            return
        row, scores = rows[-1], _version(self._folder / rows[-1].path / self._scores_name)
        try:
            if self.state.is_due(row.path, now_s):
                await self._push_whole(row, scores)
            elif self.state.scores_are_due(row.path, scores, now_s):
                await self._within_time(self._push_scores, row)
                self.state = self.state.scored(scores, self._clock.monotonic_s())
                _log.info("scores_pushed", index=row.index, url=self.state.url)
        except PotluckError as error:
            state = self.state
            self.state = state.failed(error.one_line(), self._clock.monotonic_s())
            tell = _log.warning if error.one_line() != state.reason else _log.debug
            again_s = self.state.again_s - self._clock.monotonic_s()
            tell("checkpoint_not_pushed", index=row.index, reason=error.one_line(), retry_in_s=again_s)

    async def _push_whole(self, row: CheckpointRow, scores: str) -> None:
        def push(url: str, checkpoint: Path, go_on: GoOn) -> Pushed:
            return self._push(url, checkpoint, self._scratch, go_on)

        pushed = await self._within_time(push, row)
        self.state = self.state.succeeded(pushed.name, pushed.index, int(self._clock.unix_s()), scores)
        _log.info("checkpoint_pushed", index=pushed.index, num_bytes=pushed.num_bytes, url=self.state.url)

    async def _within_time(self, work: Callable[[str, Path, GoOn], T], row: CheckpointRow) -> T:
        checkpoint, is_over = self._folder / row.path, threading.Event()
        try:
            num_bytes = sum(path.stat().st_size for path in checkpoint.iterdir())
        except OSError as error:
            raise MachineError(f"{checkpoint} cannot be read ({error.strerror})", "a readable folder") from error
        limit_s = LIMIT_S + 4 * num_bytes / SLOW_BYTES_PER_S
        out_of_time = TemporaryError(f"a push was not over after {limit_s:.0f} s", "one in time", "it is tried again")

        def go_on() -> None:
            if is_over.is_set():
                raise out_of_time

        def watched() -> T:
            self._is_working = True
            try:
                return work(self.state.url, checkpoint, go_on)
            finally:
                self._is_working = False

        try:
            with trio.move_on_after(limit_s):
                return await trio.to_thread.run_sync(watched, abandon_on_cancel=True)
        finally:
            is_over.set()  # the thread ends at its next block, whether it was out of time or the host ends
        raise out_of_time


def _version(path: Path) -> str:
    """Tells one file of scores from another; empty if there is none. They are replaced whole."""
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"
