"""Sends a daemon's notices from one task: a bounded queue, a deadline for each, and no failure that reaches the daemon."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Clock
from averaging.notices.conditions import Condition, NoticeBook
from averaging.notices.webhook import WITHIN_S, post_json, shown_url
from averaging.trio_errors import single_error
from protocol.errors import PotluckError
from protocol.tables import printable

log = structlog.get_logger()

LOOK_EVERY_S: Final = 5.0
RETRY_S: Final = 60.0
MOST_TRIES: Final = 3
MOST_QUEUED: Final = 16
MAX_TEXT: Final = 500
STOPPED: Final = "stopped"
"""The event of a daemon that an error ends."""

TOLD_FILE: Final = "notices.json"
"""In the state folder: when each kind was last told, so that a daemon that is started again and again does not repeat itself."""

_MAX_TOLD_BYTES: Final = 1 << 16

Post = Callable[[str, Mapping[str, object]], str]
Blocking = Callable[[Callable[[], str]], Awaitable[str]]
"""Runs a function that blocks. A cancellation does not wait for its end."""


@dataclass(slots=True)
class _Queued:
    body: Mapping[str, object]
    tries: int = 0


class Notifier:
    """The notices of one life of a daemon.

    Args:
        url: the owner's address, checked; empty for no notices.
        folder: the state folder.
        post: sends one notice and blocks; returns why it was not taken, or an empty text.
        blocking: runs it; in a thread of its own if not given.
    """

    def __init__(
        self, url: str, folder: Path, clock: Clock, post: Post = post_json, blocking: Blocking | None = None
    ) -> None:
        self._url, self._path, self._clock, self._post = url, folder / TOLD_FILE, clock, post
        self._book = NoticeBook(_read_told(self._path) if url else {})
        self._queue: deque[_Queued] = deque()
        self._blocking, self._threads = blocking or self._in_thread, trio.CapacityLimiter(1)

    @asynccontextmanager
    async def watch(self, run: Callable[[], str], conditions: Callable[[], Sequence[Condition]]) -> AsyncIterator[None]:
        """Look at the conditions and send what is due while the block runs. At its end a last look is sent, and the error that ends
        it, within `WITHIN_S`. `run` is the run's name.
        """
        if not self._url:
            yield
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep, run, conditions)
            try:
                yield
                self._take(run(), conditions())
            except (PotluckError, OSError, BaseExceptionGroup) as error:
                self._take_error(run(), error)
                raise
            finally:
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True, deadline=trio.current_time() + WITHIN_S):
                    await self._send_all()

    async def _keep(self, run: Callable[[], str], conditions: Callable[[], Sequence[Condition]]) -> None:
        again_s = 0.0
        while True:
            self._take(run(), conditions())
            now_s = trio.current_time()
            if self._queue and now_s >= again_s and not await self._send_all():
                again_s = now_s + RETRY_S
            await trio.sleep(LOOK_EVERY_S)

    def _take_error(self, run: str, error: BaseException) -> None:
        found = single_error(error)
        if isinstance(found, Exception):
            text = found.one_line() if isinstance(found, PotluckError) else f"a {type(found).__name__} ended it"
            self._take(run, [Condition(STOPPED, f"stopped by an error: {text}")])

    def _take(self, run: str, conditions: Sequence[Condition]) -> None:
        unix_s = self._clock.unix_s()
        for each in self._book.due(conditions, self._clock.monotonic_s(), unix_s):
            if len(self._queue) >= MOST_QUEUED:
                log.warning("notice_dropped", about=each.event, reason="too many wait to be sent")
                continue
            time = datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
            text = printable(each.text)[:MAX_TEXT]
            self._queue.append(_Queued({"run": run, "event": each.event, "text": text, "time": time}))

    async def _send_all(self) -> bool:
        """Send what is queued, oldest first, until one is not taken; returns whether all were."""
        while self._queue:
            first = self._queue[0]
            first.tries += 1
            reason = await self._send(first.body)
            if reason and first.tries < MOST_TRIES:
                return False
            self._queue.popleft()
            if reason:
                log.warning("notice_not_sent", about=first.body["event"], to=shown_url(self._url), reason=reason)
        return True

    async def _send(self, body: Mapping[str, object]) -> str:
        """Why the notice was not taken; empty if it was. A thread that hangs is left to its own deadline."""
        send = partial(_post_and_note, self._post, self._url, body, self._path, dict(self._book.told))
        with trio.move_on_after(WITHIN_S):
            return await self._blocking(send)
        return f"it took longer than {WITHIN_S:.0f} s"

    async def _in_thread(self, send: Callable[[], str]) -> str:
        return await trio.to_thread.run_sync(send, limiter=self._threads, abandon_on_cancel=True)


def _post_and_note(post: Post, url: str, body: Mapping[str, object], path: Path, told: Mapping[str, float]) -> str:
    """Post one notice, and note when each kind was told. Blocks."""
    temporary = path.with_suffix(".unfinished")
    try:
        temporary.write_text(json.dumps(dict(told)), encoding="ascii")
        os.replace(temporary, path)
    except OSError as error:  # a full disk is one of the things to tell
        log.info("notices_not_noted", reason=error.strerror or type(error).__name__)
    return post(url, body)


def _read_told(path: Path) -> dict[str, float]:
    """When each kind was last told; empty if nothing is noted or it cannot be read. Blocks."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_TOLD_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {event: float(unix_s) for event, unix_s in found.items() if isinstance(unix_s, (int, float))}
