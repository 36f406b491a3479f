"""The demo's display: a live picture on a terminal, occasional lines when piped, a loss curve and the summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import log
from pathlib import Path
from typing import Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from averaging.system.output_file import write_output
from peer.demo.summary import VICTIM, Cast, DemoSummary, HostStatus, RoundRow, Seen
from protocol.tables import bits, duration, in_bytes, whole

SPARKS: Final = "▁▂▃▄▅▆▇█"
SPARK_WIDTH: Final = 48


class Screen(Protocol):
    """A display of the demo's progress."""

    def show(self, seen: Seen, stage: str, reason: str) -> None:
        """Draw what was seen so far. `reason` says in one sentence what is awaited."""
        ...


@contextmanager
def open_screen(cast: Cast, console: Console) -> Iterator[Screen]:
    """A live screen on a terminal, plain lines otherwise."""
    if not console.is_terminal:
        yield _PlainScreen(console)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield _LiveScreen(live, cast)


class _LiveScreen:
    def __init__(self, live: Live, cast: Cast) -> None:
        self._live, self._cast = live, cast

    def show(self, seen: Seen, stage: str, reason: str) -> None:
        self._live.update(picture(seen, self._cast, stage, reason), refresh=True)


class _PlainScreen:
    """Prints a line whenever the round or the stage changes. Outside the training stage, also when the reason changes."""

    def __init__(self, console: Console) -> None:
        self._console, self._last = console, ""

    def show(self, seen: Seen, stage: str, reason: str) -> None:
        key = f"{seen.index} {stage} {'' if stage == 'training' else reason}"
        if key == self._last:
            return
        self._last = key
        heldout = bits(seen.heldout[max(seen.heldout)].nats if seen.heldout else None)
        tokens = f"{seen.host.total_tokens:,}/{seen.host.target_total_tokens:,} tokens" if seen.host else "0 tokens"
        line = f"{stage:<10} round {seen.index:<3} {tokens}  held-out {heldout} bits/byte  {reason}"
        self._console.print(line, markup=False, soft_wrap=True)


def picture(seen: Seen, cast: Cast, stage: str, reason: str) -> RenderableType:
    """The whole screen."""
    now = Text(f"{stage}: {reason}", style="bold")
    parts: list[RenderableType] = [now]
    if seen.host is not None:
        parts = [_progress(seen.host), now, "", _losses(seen, seen.host), "", _peers(seen, cast), "", _last_round(seen)]
    return Panel(Group(*parts), title=f"Potluck demo: {cast.title}")


def _progress(host: HostStatus) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    left = "estimating" if host.eta_s is None else f"{duration(host.eta_s)} left"
    bar = ProgressBar(total=max(1, host.target_total_tokens), completed=host.total_tokens, width=40)
    row.add_row(bar, f"{host.total_tokens:,} of {host.target_total_tokens:,} tokens", f"round {host.index}", left)
    return row


def _losses(seen: Seen, host: HostStatus) -> RenderableType:
    curves = {"held-out": [seen.heldout[index].nats for index in sorted(seen.heldout)]}
    curves |= {f"  {unit}": [point.nats for point in curve] for unit, curve in host.heldout_experts.items()}
    curves["training"] = [point.nats for point in host.train_loss]
    rows = Table.grid(padding=(0, 2))
    for name, nats in curves.items():
        rows.add_row(name, f"{bits(nats[-1] if nats else None)} bits/byte", sparkline(nats))
    if host.yardsticks is not None:
        pairs, zlib = bits(host.yardsticks.pairs_nats_per_byte), f"{host.yardsticks.zlib_bits_per_byte:.3f}"
        rows.add_row("pair model", f"{pairs} bits/byte", "byte pairs counted in the training text")
        rows.add_row("zlib", f"{zlib} bits/byte", "the compressor, on the held-out text")
    return rows


def _peers(seen: Seen, cast: Cast) -> RenderableType:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for heading in ("peer", "name", "state", "tokens/s", "ready", "bits/byte", "up", "down", "root"):
        table.add_column(heading, justify="left" if heading in ("peer", "name", "state", "root") else "right")
    notes = {} if cast.one_round else {cast.slow_peer: " (slowed)", VICTIM: " (to be killed)"}
    for number in range(1, cast.num_peers + 1):
        peer = seen.peers.get(number)
        unit = f", expert {cast.experts[number - 1]}" if cast.experts else ""
        if cast.num_stages and peer is not None and peer.unit:
            unit = f", {peer.unit}"
        label = f"{number}{unit}{notes.get(number, '')}"
        if number in seen.exits:
            table.add_row(label, peer.name if peer else "", f"gone ({seen.exits[number]})", style="red")
        elif peer is None:
            table.add_row(label, "", "starting", style="dim")
        else:
            numbers = (whole(peer.tokens_per_s), whole(peer.tokens_ready), bits(peer.loss))
            moved = (in_bytes(peer.bytes_up), in_bytes(peer.bytes_down))
            table.add_row(label, peer.name, peer.state, *numbers, *moved, peer.state_root[:8])
    return table


def _last_round(seen: Seen) -> RenderableType:
    if not seen.rounds:
        return Text("no round yet", style="dim")
    row = seen.rounds[max(seen.rounds)]
    return Text(f"last round {row.index} ({row.commit[:8]}): {weights_line(seen, row)}")


def weights_line(seen: Seen, row: RoundRow) -> str:
    """The members of a round with their shares, and the omitted peers with the reasons."""
    names = {peer: f"peer {number}" for number, peer in seen.peer_ids.items()}
    shares = sorted((names.get(peer, peer[-6:]), row.weights.get(peer, 0.0)) for peer in row.members)
    members = ", ".join(f"{name} {share:.0%}" for name, share in shares)
    omitted = ", ".join(f"{names.get(o.peer, o.peer[-6:])} left out: {o.reason}" for o in row.omitted)
    return f"{members}; {omitted}" if omitted else members


def sparkline(values: Sequence[float]) -> str:
    """The values as a row of bars, lowest to highest, at most SPARK_WIDTH of them."""
    sampled = values[:: -(-len(values) // SPARK_WIDTH) or 1]
    low, span = min(sampled, default=0.0), (max(sampled, default=0.0) - min(sampled, default=0.0)) or 1.0
    return "".join(SPARKS[round((value - low) / span * (len(SPARKS) - 1))] for value in sampled)


def plot_losses(seen: Seen, path: Path, *, title: str) -> None:
    """Draw training and held-out loss in bits per byte over committed tokens, with zlib and the pair model for comparison, as a
    PNG.

    Raises:
        UsageError, StorageError: as `write_output`.
    """
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    heldout = [seen.heldout[index] for index in sorted(seen.heldout)]
    train = seen.host.train_loss if seen.host else ()
    for points, style, colour, label in ((train, "-", "#9bb7d4", "training"), (heldout, "o-", "#1f5fa8", "held-out")):
        if points:
            losses = [point.nats / log(2) for point in points]
            axes.plot([point.tokens / 1e6 for point in points], losses, style, color=colour, markersize=4, label=label)
    if seen.host is not None and seen.host.yardsticks is not None:
        pairs, zlib = seen.host.yardsticks.pairs_nats_per_byte / log(2), seen.host.yardsticks.zlib_bits_per_byte
        axes.axhline(pairs, color="#b5651d", linestyle="--", label=f"pair-frequency model {pairs:.2f}")
        axes.axhline(zlib, color="#777777", linestyle=":", label=f"zlib {zlib:.2f}")
    axes.set(xlabel="committed tokens (millions)", ylabel="bits per byte", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    made = io.BytesIO()
    figure.savefig(made, format="png")
    write_output(path, made.getvalue(), "see --plot")


def print_summary(summary: DemoSummary, sample: str, kept: Path | None, console: Console, cast: Cast) -> None:
    """The summary: results, a sample of the model, and broken promises. After one round nothing of the killed peer and the curve."""
    if sample:
        console.print(Panel(Text(sample), title="Text that the model writes after this training"))
    start, end = bits(summary.heldout_loss_start), bits(summary.heldout_loss_end)
    back = "never" if summary.rejoin_s is None else f"after {summary.rejoin_s:.1f} s"
    waited = f", the others waited {summary.others_paused_s:.0f} s for it" if summary.others_paused_s else ""
    few = "" if cast.is_loss_judged or cast.one_round else "; too few tokens to judge it"
    rows = {"held-out loss": f"{start} -> {end} bits/byte (pair model {bits(summary.heldout_loss_pairs)}{few})"}
    rows |= {f"  {unit}": f"{bits(nats)}, on its documents" for unit, nats in summary.heldout_experts_end.items()}
    rows["rounds"] = f"{summary.rounds_committed}, members {list(summary.members_per_round)}"
    if not cast.one_round:
        rows["killed peer"] = f"counted again {back}{waited}"
    rows["bytes"] = f"{in_bytes(summary.bytes_up)} up, {in_bytes(summary.bytes_down)} down"
    roots = {"state roots": tuple(summary.state_roots.values()), **summary.unit_roots}
    rows |= {name: ", ".join(root[:8] or "none" for root in found) for name, found in roots.items()}
    rows["checkpoint"] = f"{summary.checkpoint_root[:8] or 'none'} {summary.checkpoint if kept else ''}"
    rows |= ({} if cast.one_round else {"loss curve": summary.plot}) | {"time": f"{summary.seconds:.0f} s"}
    if summary.failures:
        logs = f"the logs in {kept / 'logs'}" if kept else "the logs that `potluck demo --dir DIR` keeps in DIR/logs"
        rows["to do"] = f"if this machine was busy, try again when it is not; else report it, with {logs}"
    for name, text in rows.items():
        console.print(Text(f"{name:<16} {text}"), soft_wrap=True)
    for failure in summary.failures:
        console.print(Text(f"FAILED: {failure}"), style="bold red", soft_wrap=True)
    console.print("ok" if summary.ok else "not ok", style="bold green" if summary.ok else "bold red")
