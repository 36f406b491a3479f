"""The volunteer's screen while joined: a live panel on a terminal, occasional lines when piped."""

from __future__ import annotations

from collections.abc import Callable

import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from peer.status.status import PeerStatus
from peer.status.status_text import next_round, of_the_run, progress, speed, state_phrase, status_rows
from protocol.tables import in_bytes, printable, several

LIVE_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 1.0
PLAIN_SILENCE_S = 600.0
"""After this long without a change, print the round's progress or the waiting time. A silent log looks like a dead peer."""

_BAR_WIDTH = 50


async def run_screen(read_status: Callable[[], PeerStatus], *, mode: str, console: Console | None = None) -> None:
    """Show the status until cancelled. `mode` is PeerConfig.screen: "auto", "live" or "plain"."""
    console = console or Console()
    if mode == "live" or (mode == "auto" and console.is_terminal):
        await _run_live(read_status, console)
    else:
        await _run_plain(read_status, console)


async def _run_live(read_status: Callable[[], PeerStatus], console: Console) -> None:
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                live.update(peer_picture(read_status()), refresh=True)
                await trio.sleep(LIVE_INTERVAL_S)
        finally:
            live.update(peer_picture(read_status()), refresh=True)


async def _run_plain(read_status: Callable[[], PeerStatus], console: Console) -> None:
    last, printed_s = "", trio.current_time()
    while True:
        status, now_s = read_status(), trio.current_time()
        key = f"{status.state} {status.index} {status.reason if status.state != 'training' else ''}"
        is_quiet = now_s - printed_s >= PLAIN_SILENCE_S
        if key != last or is_quiet:
            is_on_its_way = is_quiet and status.state == "training"
            line = f"{peer_line(status)}; {next_round(status)}" if is_on_its_way else peer_line(status)
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            last, printed_s = key, now_s
        await trio.sleep(PLAIN_INTERVAL_S)


def peer_line(status: PeerStatus) -> str:
    """The peer's state in one line."""
    parts = [state_phrase(status), f"round {status.index}", speed(status)]
    parts += [of_the_run(status)] if status.eta_s is not None else []
    return printable(f"{status.name}: {', '.join(parts)}; {status.reason}")


def peer_picture(status: PeerStatus) -> RenderableType:
    """The panel: progress bars and the rows of `potluck status`."""
    rows = Table.grid(padding=(0, 2))
    rows.add_row("state", Text(printable(f"{state_phrase(status)}: {status.reason}"), style="bold"))
    for name, text in status_rows(status):
        rows.add_row(Text(name), Text(text))
    title = f"{status.name} in {printable(status.run or 'a run')} (Ctrl-C leaves)"
    return Panel(Group(_bars(status), Text(""), rows), title=Text(title))


def _bars(status: PeerStatus) -> Table:
    """Progress of a download while there is one, otherwise of the run and its next round."""
    bars = Table.grid()  # cells end their lines; a bar alone does not
    if status.download_bytes_all:
        here, everything = in_bytes(status.download_bytes_here), in_bytes(status.download_bytes_all)
        share = status.download_bytes_here / status.download_bytes_all
        _add_bar(bars, share, f"the run's state: {here} of {everything} from {several(status.download_donors, 'peer')}")
        return bars
    _add_bar(bars, status.total_tokens / max(1, status.target_total_tokens), progress(status))
    if status.round_target_tokens:
        _add_bar(bars, status.round_share, next_round(status))
    return bars


def _add_bar(bars: Table, share: float, text: str) -> None:
    bars.add_row(ProgressBar(total=1.0, completed=share, width=_BAR_WIDTH))
    bars.add_row(Text(text))
