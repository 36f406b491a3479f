"""The host's screen: a live panel on a terminal, and elsewhere one plain line for each round and each event."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from averaging.host.daemon_views import named_row, rows_of, shown_state
from averaging.host.live_screen import bars_of, rows_of_text, run_daemon_screen
from averaging.storage.full_disk import ROOM_AGAIN
from coordinator.ledger.run_memory import RunPast
from coordinator.progress.run_core import Phase, is_here
from coordinator.progress.run_events import RunEvent
from coordinator.progress.run_view import NO_PAST, RunPicture
from coordinator.status.run_json import Json, now_json
from coordinator.status.status_text import alerts, headline, progress
from protocol.tables import bits, done_percent, duration, printable, several, whole

EVENTS_SHOWN: Final = 6
PEERS_SHOWN: Final = 12
"""More would not fit on a usual terminal; `potluck peers` lists all."""

NEW_EVENTS: Final = 100
"""Most events that one look can find new."""

TROUBLE_EVERY_S: Final = 60.0
"""A trouble that comes back within this time is not told again."""

_NUMBERS: Final = re.compile(r"[0-9][0-9.,]*( [kMGT]?B)?")


@dataclass(frozen=True, slots=True)
class HostView:
    """The run at one moment.

    Attributes:
        status: as /api/status has it between rounds.
        losses: the newest losses with their names, in nats per byte.
        events: the newest events, oldest first.
        trouble: a problem of this machine in one sentence; empty for none.
    """

    status: Json
    losses: Sequence[tuple[str, float]]
    events: Sequence[RunEvent]
    trouble: str = ""


def host_view(
    picture: RunPicture,
    events: Sequence[RunEvent],
    now_s: float,
    trouble: str = "",
    past: RunPast = NO_PAST,
    apart: str = "",
) -> HostView:
    """The view of a snapshot. `now_s`: monotonic, as in the picture; `past`, `apart`: as in run_view.now_json."""
    newest = {point.kind: point.nats for point in picture.loss_points}
    kinds = (("train", "training"), ("heldout", "held-out"), ("prose", "prose"))
    losses = tuple((label, newest[kind]) for kind, label in kinds if kind in newest)
    return HostView(now_json(picture, now_s, past, apart), losses, events, trouble)


async def run_host_screen(read: Callable[[], HostView], *, mode: str, console: Console | None = None) -> None:
    """Show the run until cancelled. `mode` is HostConfig.screen: "auto", "live" or "plain"."""
    lines = PlainLines()
    await run_daemon_screen(
        lambda: host_picture(read()), lambda now_s: lines.of(read(), now_s), mode=mode, console=console
    )


class PlainLines:
    """The lines that are due: what went wrong on this machine, then the events since the last look. A round has its loss with it."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._trouble, self._told_s = "", -inf

    def of(self, view: HostView, now_s: float) -> Sequence[str]:
        """The lines to print now. Events from before the first look are not repeated. `now_s`: monotonic seconds."""
        newest = view.events[-1].number if view.events else 0
        new = [] if self._last is None else [event for event in view.events if event.number > self._last]
        lines, trouble = list[str](), _NUMBERS.sub("#", view.trouble)
        if trouble and trouble != self._trouble and now_s - self._told_s >= TROUBLE_EVERY_S:
            lines, self._told_s = [view.trouble], now_s
        elif self._trouble and not trouble:
            lines = [ROOM_AGAIN]
        last_round = next((event for event in reversed(new) if _is_round(event)), None)
        lines += [f"{event.text}{_beside_round(view)}" if event is last_round else event.text for event in new]
        self._last, self._trouble = newest, trouble
        return [printable(line) for line in lines]


def _is_round(event: RunEvent) -> bool:
    return event.kind == "round" or event.text.startswith("round ")


def _beside_round(view: HostView) -> str:
    status = view.status
    told = ", ".join(f"{name} {bits(nats)}" for name, nats in view.losses)
    losses = [f"{told} bits per byte"] if told else []
    share = done_percent(_number(status, "total_tokens"), _number(status, "target_total_tokens"))
    left = [f"{duration(status['eta_s'])} to go"] if status.get("eta_s") else []
    return "; " + ", ".join([*losses, f"{share} of the run", *left])


def host_picture(view: HostView) -> RenderableType:
    """The panel: what is unusual, progress, losses, peers and the newest events."""
    status = view.status
    strange = [Text(text, style="bold yellow") for text in [*([view.trouble] if view.trouble else []), *alerts(status)]]
    share = _number(status, "total_tokens") / max(1.0, _number(status, "target_total_tokens"))
    losses = ", ".join(f"{name} {bits(nats)}" for name, nats in view.losses)
    rows = [
        ("state", headline(status).partition(": ")[2]),
        ("speed", f"{whole(status.get('tokens_per_s'))} tokens/s"),
        ("bits per byte", losses or "not yet"),
        *_peer_rows(status),
        *_event_rows(view.events),
    ]
    trains_on = (
        "; peers train on" if status.get("phase") == Phase.TRAINING.value and _number(status, "num_here") else ""
    )
    title = f"{printable(status.get('run'))} (Ctrl-C closes the host{trains_on})"
    return Panel(Group(*strange, bars_of([(share, progress(status))]), Text(""), rows_of_text(rows)), title=Text(title))


def _peer_rows(status: Json) -> list[tuple[str, str]]:
    peers = sorted(rows_of(status.get("peers")), key=lambda row: (not is_here(row), str(row.get("name"))))
    num_peers, here = int(_number(status, "num_peers")), int(_number(status, "num_here"))
    away = num_peers - here + int(_number(status, "num_away"))
    rows = [("peers", f"{several(here, 'peer')} here, {away} away")]
    for row in peers[:PEERS_SHOWN]:
        loss = "" if row.get("loss") is None else f", {bits(row.get('loss'))} bits per byte"
        counted = f"{whole(row.get('tokens_counted'))} tokens counted"
        speed = f", {whole(row.get('tokens_per_s'))} tokens/s{loss}" if is_here(row) else ""
        rows.append((f"  {printable(named_row(row))}", f"{shown_state(row)}{speed}, {counted}"))
    return rows + ([("", f"and {num_peers - PEERS_SHOWN} more: potluck peers")] if num_peers > PEERS_SHOWN else [])


def _event_rows(events: Sequence[RunEvent]) -> list[tuple[str, str]]:
    return [("events" if not place else "", event.text) for place, event in enumerate(reversed(events[-EVENTS_SHOWN:]))]


def _number(row: Json, name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0
