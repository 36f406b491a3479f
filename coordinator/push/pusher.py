"""Pushes each new checkpoint while the host runs. A push that fails is told, tried again later, and stops nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

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

Push = Callable[[str, Path, Path], "Pushed"]
"""(address, checkpoint, scratch folder) -> what was pushed, or raises PotluckError. Blocks."""


class Pusher:
    """The pushes to one address.

    Args:
        newest: the newest checkpoints on the followed lineage, oldest first.
        folder: of the checkpoints. scratch: a folder for exports, which is made and removed.
    """

    def __init__(
        self,
        url: str,
        newest: Callable[[], Sequence[CheckpointRow]],
        folder: Path,
        scratch: Path,
        clock: Clock,
        push: Push,
    ) -> None:
        self._newest, self._folder, self._scratch = newest, folder, scratch
        self._clock, self._push = clock, push
        self.state = PushState(url)

    async def run(self) -> None:
        """Push until cancelled."""
        while True:
            await self.push_once()
            await trio.sleep(LOOK_EVERY_S)

    async def push_once(self) -> None:
        """Push the newest checkpoint if that is due. Raises nothing of the push."""
        rows = self._newest()
        if not rows or not self.state.is_due(rows[-1].path, self._clock.monotonic_s()):
            return
        row, state = rows[-1], self.state
        try:
            pushed = await self._within_time(self._folder / row.path)
        except PotluckError as error:
            self.state = state.failed(error.one_line(), self._clock.monotonic_s())
            tell = _log.warning if error.one_line() != state.reason else _log.debug
            again_s = self.state.again_s - self._clock.monotonic_s()
            tell("checkpoint_not_pushed", index=row.index, reason=error.one_line(), retry_in_s=again_s)
            return
        self.state = state.succeeded(pushed.name, pushed.index, int(self._clock.unix_s()))
        _log.info("checkpoint_pushed", index=pushed.index, num_bytes=pushed.num_bytes, url=state.url)

    async def _within_time(self, checkpoint: Path) -> Pushed:
        try:
            num_bytes = sum(path.stat().st_size for path in checkpoint.iterdir())
        except OSError as error:
            raise MachineError(f"{checkpoint} cannot be read ({error.strerror})", "a readable folder") from error
        limit_s = LIMIT_S + 4 * num_bytes / SLOW_BYTES_PER_S
        with trio.move_on_after(limit_s):
            work = partial(self._push, self.state.url, checkpoint, self._scratch)
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        raise TemporaryError(f"a push was not over after {limit_s:.0f} s", "one in time", "it is tried again")
