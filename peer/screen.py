"""The volunteer's screen while joined: one live panel on a terminal, a line now and then when piped."""

from __future__ import annotations

from collections.abc import Callable

import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from peer.demo_screen import bits, in_bytes
from peer.status import PeerStatus

LIVE_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 1.0


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
    last = ""
    while True:
        status = read_status()
        key = f"{status.state} {status.index} {status.reason if status.state != 'training' else ''}"
        if key != last:
            console.print(peer_line(status), highlight=False, soft_wrap=True)
            last = key
        await trio.sleep(PLAIN_INTERVAL_S)


def peer_line(status: PeerStatus) -> str:
    """One line: where this peer stands."""
    speed = f"{status.tokens_per_s:,.0f} tokens/s"
    return f"{status.name}: {status.state}, round {status.index}, {speed}, loss {bits(status.loss)}; {status.reason}"


def peer_picture(status: PeerStatus) -> RenderableType:
    """The panel."""
    rows = Table.grid(padding=(0, 2))
    rows.add_row("state", Text(f"{status.state}: {status.reason}", style="bold"))
    rows.add_row("training", f"{status.tokens_per_s:,.0f} tokens/s, loss {bits(status.loss)}")
    rows.add_row("yours", f"{status.tokens_trained:,} tokens trained, counted in {status.rounds_counted} rounds")
    rows.add_row("traffic", f"{in_bytes(status.bytes_up)} up, {in_bytes(status.bytes_down)} down")
    rows.add_row("disk", f"{in_bytes(status.disk_bytes)}, at most {in_bytes(status.disk_bound_bytes)}")
    if status.last_round is not None:
        share = status.last_round.weights.get(status.peer, 0.0)
        rows.add_row("last round", f"{len(status.last_round.members)} members, your share {share:.0%}")
    if status.allowed_reason and status.allowed_reason != status.reason:
        rows.add_row("controls", status.allowed_reason)
    if status.apart:
        rows.add_row("apart", status.apart)
    if not status.is_sound:
        rows.add_row("health", "the state differs from the one that the run attests; it is being made again")
    if status.credential_left_s is not None and status.host_heard_ago_s is not None:
        away = " (away)" if status.is_host_away else ""
        left = f"credential good for {status.credential_left_s / 86400:.1f} days"
        rows.add_row("host", f"heard {status.host_heard_ago_s:.0f} s ago{away}, {left}, {status.bans} bans")
    if status.restarted:
        rows.add_row("start", status.restarted)
    rows.add_row("root", status.state_root[:16] or "-")
    bar = ProgressBar(total=max(1, status.target_total_tokens), completed=status.total_tokens, width=50)
    progress = f"round {status.index}, {status.total_tokens:,} of {status.target_total_tokens:,} tokens"
    if status.download_bytes_all:
        bar = ProgressBar(total=status.download_bytes_all, completed=status.download_bytes_here, width=50)
        here, everything = in_bytes(status.download_bytes_here), in_bytes(status.download_bytes_all)
        progress = f"the run's state: {here} of {everything} from {status.download_donors} peers"
    title = f"{status.name} in {status.run or 'a run'} (Ctrl-C leaves)"
    return Panel(Group(bar, Text(progress), Text(""), rows), title=title)
