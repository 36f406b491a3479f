"""A daemon's screen: a panel that is redrawn on a terminal, and plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from averaging.host.hints import with_folder
from protocol.tables import printable

LIVE_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 1.0

_BAR_WIDTH = 50


async def run_daemon_screen(
    picture: Callable[[], RenderableType],
    new_lines: Callable[[float], Sequence[str]],
    *,
    mode: str,
    console: Console | None = None,
) -> None:
    """Show a daemon until cancelled.

    Args:
        picture: the panel at this moment.
        new_lines: the plain lines that are due at a time, in monotonic seconds.
        mode: "auto", "live" or "plain"; "auto" takes the panel on a terminal.
        console: the terminal; standard output if not given.
    """
    console = console or Console()
    if mode == "live" or (mode == "auto" and console.is_terminal):
        await _run_live(picture, console)
    else:
        await _run_plain(new_lines, console)


async def _run_live(picture: Callable[[], RenderableType], console: Console) -> None:
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                live.update(picture(), refresh=True)
                await trio.sleep(LIVE_INTERVAL_S)
        finally:
            live.update(picture(), refresh=True)


async def _run_plain(new_lines: Callable[[float], Sequence[str]], console: Console) -> None:
    try:
        while True:
            _print(console, new_lines(trio.current_time()))
            await trio.sleep(PLAIN_INTERVAL_S)
    finally:
        _print(console, new_lines(trio.current_time()))


def _print(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(printable(with_folder(line)), markup=False, highlight=False, soft_wrap=True)


def bars_of(shares: Sequence[tuple[float, str]]) -> Table:
    """Progress bars, each with its line of text below. A share is 0 to 1."""
    bars = Table.grid()  # cells end their lines; a bar alone does not
    for share, text in shares:
        bars.add_row(ProgressBar(total=1.0, completed=min(1.0, max(0.0, share)), width=_BAR_WIDTH))
        bars.add_row(Text(printable(text)))
    return bars


def rows_of_text(rows: Sequence[tuple[str, str]], style: str = "") -> Table:
    """Labelled rows."""
    grid = Table.grid(padding=(0, 2))
    for name, text in rows:
        grid.add_row(Text(name), Text(printable(with_folder(text)), style=style))
    return grid
