"""The demo's screen: one live picture on a terminal, one line now and then when piped.

Draws what it is given, decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from peer.demo.observation import HostStatus, Observation, RoundRow
from peer.demo.script_core import VICTIM, Cast, DemoState
from peer.demo.summary import DemoSummary

NATS_PER_BIT: Final = math.log(2.0)
SPARKS: Final = "▁▂▃▄▅▆▇█"
SPARK_WIDTH: Final = 48


class Screen(Protocol):
    """Something that shows the demo."""

    def show(self, seen: Observation, state: DemoState, reason: str) -> None:
        """Draw the present state."""
        ...


@contextmanager
def open_screen(console: Console | None = None) -> Iterator[Screen]:
    """A live screen on a terminal, else plain lines."""
    console = console or Console()
    if not console.is_terminal:
        yield PlainScreen(console)
        return
    with Live(console=console, auto_refresh=False, transient=False) as live:
        yield LiveScreen(live)


class LiveScreen:
    """Redraws one picture in place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, seen: Observation, state: DemoState, reason: str) -> None:
        """Redraw."""
        self._live.update(picture(seen, state, reason), refresh=True)


class PlainScreen:
    """Prints a line whenever the round or the reason changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ""

    def show(self, seen: Observation, state: DemoState, reason: str) -> None:
        """Print a line if something changed."""
        host = seen.host
        index = host.index if host else 0
        key = f"{index} {state.stage} {reason if state.stage.value != 'training' else ''}"
        if key == self._last:
            return
        self._last = key
        heldout = bits(latest_heldout(seen))
        tokens = f"{host.total_tokens:,}/{host.target_total_tokens:,} tokens" if host else "0 tokens"
        line = f"{state.stage.value:<10} round {index:<3} {tokens}  held-out {heldout}  {reason}"
        self._console.print(line, highlight=False, soft_wrap=True)


def picture(seen: Observation, state: DemoState, reason: str) -> RenderableType:
    """The whole screen."""
    host = seen.host
    if host is None:
        return Panel(Text(f"{state.stage.value}: {reason}"), title="Potluck demo")
    parts: list[RenderableType] = [_progress(host), Text(f"{state.stage.value}: {reason}", style="bold"), Text("")]
    parts += [_losses(seen, host), Text(""), _peers(seen, state.cast), Text(""), _last_round(seen)]
    return Panel(Group(*parts), title=_title(state.cast))


def _title(cast: Cast) -> str:
    if cast.num_experts:
        return "Potluck demo: a host, four volunteers, a trunk of all and two experts"
    if cast.num_stages:
        return "Potluck demo: a host, six volunteers, one model in three stages, two lanes"
    return "Potluck demo: a host, three volunteers, one model"


def _progress(host: HostStatus) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    eta = f"{host.eta_s:.0f} s left" if host.eta_s is not None else "estimating"
    done = ProgressBar(total=max(1, host.target_total_tokens), completed=host.total_tokens, width=40)
    row.add_row(done, f"{host.total_tokens:,} of {host.target_total_tokens:,} tokens", f"round {host.index}", eta)
    return row


def _losses(seen: Observation, host: HostStatus) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    points = [seen.heldout[index].nats for index in sorted(seen.heldout)]
    train = host.train_loss[-1].nats if host.train_loss else None
    table.add_row("held-out", bits(points[-1] if points else None), sparkline(points))
    for unit, curve in host.heldout_experts.items():
        table.add_row(f"  {unit}", bits(curve[-1].nats if curve else None), sparkline([point.nats for point in curve]))
    table.add_row("training", bits(train), sparkline([point.nats for point in host.train_loss]))
    if host.yardsticks is not None:
        table.add_row(
            "pair model", bits(host.yardsticks.pairs_nats_per_byte), "byte pairs counted in the training text"
        )
        table.add_row(
            "zlib", f"{host.yardsticks.zlib_bits_per_byte:.2f} bits/byte", "the compressor, on the held-out text"
        )
    return table


def _peers(seen: Observation, cast: Cast) -> RenderableType:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for heading in ("peer", "name", "state", "tokens/s", "ready", "loss", "up", "down", "root"):
        table.add_column(heading, justify="left" if heading in ("peer", "name", "state", "root") else "right")
    notes = {cast.slow_peer: " (slowed)", VICTIM: " (to be killed)"}
    for number in range(1, cast.num_peers + 1):
        report, expert = seen.reports.get(number), cast.expert_of(number)
        held = "" if expert is None else f", expert {expert}"
        if cast.num_stages and report is not None and report.unit:
            held = f", {report.unit}"
        label = f"{number}{held}{notes.get(number, '')}"
        if number in seen.exits:
            table.add_row(label, report.name if report else "", f"gone ({seen.exits[number]})", style="red")
        elif report is None:
            table.add_row(label, "", "starting", style="dim")
        else:
            table.add_row(
                label,
                report.name,
                report.state,
                f"{report.tokens_per_s:,.0f}",
                f"{report.tokens_ready:,}",
                bits(report.loss),
                in_bytes(report.bytes_up),
                in_bytes(report.bytes_down),
                report.state_root[:8],
            )
    return table


def _last_round(seen: Observation) -> RenderableType:
    if not seen.rounds:
        return Text("no round yet", style="dim")
    row = seen.rounds[max(seen.rounds)]
    return Text(f"last round {row.index} ({row.commit[:8]}): {weights_line(seen, row)}")


def weights_line(seen: Observation, row: RoundRow) -> str:
    """Who took part with which share, and who was left out and why."""
    numbers = {peer: f"peer {number}" for number, peer in seen.peer_ids.items()}
    shares = ", ".join(
        f"{numbers.get(peer, peer[-6:])} {row.weights.get(peer, 0.0):.0%}"
        for peer in sorted(row.members, key=lambda peer: numbers.get(peer, peer))
    )
    omitted = ", ".join(f"{numbers.get(o.peer, o.peer[-6:])} left out: {o.reason}" for o in row.omitted)
    return f"{shares}; {omitted}" if omitted else shares


def latest_heldout(seen: Observation) -> float | None:
    """The newest held-out loss in nats per byte."""
    return seen.heldout[max(seen.heldout)].nats if seen.heldout else None


def bits(nats: float | None) -> str:
    """A loss in nats per byte, shown in bits per byte."""
    return "-" if nats is None else f"{nats / NATS_PER_BIT:.2f} bits/byte"


def in_bytes(count: int) -> str:
    """A byte count for people, in powers of 1000."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def sparkline(values: list[float]) -> str:
    """The values as a row of bars, lowest to highest, at most SPARK_WIDTH of them."""
    if not values:
        return ""
    stride = -(-len(values) // SPARK_WIDTH)
    shown = values[::stride]
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join(SPARKS[round((value - low) / span * (len(SPARKS) - 1))] for value in shown)


def _after_failure(kept: Path | None) -> str:
    logs = f"the logs in {kept / 'logs'}" if kept else "the logs that `potluck demo --dir DIR` keeps in DIR/logs"
    return f"to do            if this machine was busy, try again when it is not; else report it, with {logs}"


def print_summary(summary: DemoSummary, sample: str, kept: Path | None) -> None:
    """The last words: what was reached, what the model writes, what failed."""
    console = Console(highlight=False, soft_wrap=True)
    if sample:
        console.print(Panel(Text(sample), title="What the model writes after this training"), soft_wrap=False)
    start, end = bits(summary.heldout_loss_start), bits(summary.heldout_loss_end)
    console.print(f"held-out loss    {start} -> {end} (pair model {bits(summary.heldout_loss_pairs)})")
    for unit, nats in summary.heldout_experts_end.items():
        console.print(f"  {unit:<14} {bits(nats)}, on the documents that go to it")
    console.print(f"rounds           {summary.rounds_committed}, members {list(summary.members_per_round)}")
    back = "never" if summary.rejoin_s is None else f"after {summary.rejoin_s:.1f} s"
    waited = f", the others waited {summary.others_paused_s:.0f} s for it" if summary.others_paused_s else ""
    console.print(f"killed peer      counted again {back}{waited}")
    console.print(f"bytes            {in_bytes(summary.bytes_up)} up, {in_bytes(summary.bytes_down)} down")
    console.print(f"state roots      {', '.join(root[:8] or 'none' for root in summary.state_roots.values())}")
    for unit, roots in summary.unit_roots.items():
        console.print(f"{unit:<16} {', '.join(root[:8] or 'none' for root in roots)}")
    console.print(f"checkpoint       {summary.checkpoint_root[:8] or 'none'} {summary.checkpoint if kept else ''}")
    console.print(f"loss curve       {summary.plot}")
    console.print(f"time             {summary.seconds:.0f} s")
    for failure in summary.failures:
        console.print(f"FAILED: {failure}", style="bold red")
    if summary.failures:
        console.print(_after_failure(kept))
    console.print("ok" if summary.ok else "not ok", style="bold green" if summary.ok else "bold red")
