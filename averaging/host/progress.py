"""Progress of a long command on standard error: a bar with the time to go on a terminal, otherwise a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from protocol.estimates.eta import ProgressPoint, time_left_s
from protocol.tables import duration, in_bytes

LINE_EVERY_S: Final = 10.0

OnBytes = Callable[[int, int], None]
"""Called with the bytes done so far and with all of them, as often as the work likes."""


@contextmanager
def shown_progress(what: str, clock: Callable[[], float] = time.monotonic) -> Iterator[OnBytes]:
    """Show the progress of the block on standard error. A piece of work that is over within LINE_EVERY_S prints no lines."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(what, clock, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)).take
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    """A line every LINE_EVERY_S, with the time to go at the speed so far."""

    def __init__(self, what: str, clock: Callable[[], float], say: Callable[[str], None]) -> None:
        self._what = what
        self._clock = clock
        self._say = say
        self._first: ProgressPoint | None = None
        self._said_s = clock()

    def take(self, done: int, total: int) -> None:
        now = ProgressPoint(done, self._clock())
        self._first = self._first or now
        if now.at_s - self._said_s < LINE_EVERY_S:
            return
        self._said_s = now.at_s
        left_s = time_left_s((self._first, now), done, total)
        left = "" if left_s is None else f", about {duration(left_s)} to go"
        self._say(f"{self._what}: {in_bytes(done)} of {in_bytes(total)}{left}")
