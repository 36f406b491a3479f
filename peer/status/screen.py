"""The volunteer's screen while joined: a live panel on a terminal, one plain line a round when piped."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from averaging.host.hints import with_folder
from averaging.host.live_screen import bars_of, rows_of_text, run_daemon_screen
from averaging.storage.full_disk import ROOM_AGAIN
from peer.status.status import PeerStatus
from peer.status.status_text import (
    ending,
    is_disk_full,
    next_round,
    of_the_run,
    own_name,
    progress,
    round_line,
    speed,
    state_and_reason,
    state_phrase,
    status_rows,
    time_left,
    unusual,
)
from protocol.tables import in_bytes, printable, several

PLAIN_SILENCE_S = 600.0
"""After this long without a line, print the round's progress or the waiting time. A silent log looks like a dead peer."""

PLAIN_PROGRESS_S = 60.0
"""Interval of lines on the progress of a wait, such as a download. Nothing is said twice within this time."""

_NUMBERS: Final = re.compile(r"[0-9][0-9.,]*( [kMGT]?B)?")


async def run_screen(read_status: Callable[[], PeerStatus], *, mode: str, console: Console | None = None) -> None:
    """Show the status until cancelled. `mode` is PeerConfig.screen: "auto", "live" or "plain"."""
    lines = PlainLines()
    picture, new_lines = lambda: peer_picture(read_status()), lambda now_s: lines.of(read_status(), now_s)
    await run_daemon_screen(picture, new_lines, mode=mode, console=console)


class PlainLines:
    """The plain lines that are due: one for each round, each change of state and each thing out of the ordinary."""

    def __init__(self) -> None:
        self._state = ""
        self._round: int | None = None
        self._unusual: frozenset[str] = frozenset()
        self._said_at_s: dict[str, float] = {}
        self._said_s, self._reason, self._was_full, self._has_ended = 0.0, "", False, False

    def of(self, status: PeerStatus, now_s: float) -> Sequence[str]:
        """The lines to print now; a change that only moves numbers is none."""
        lines, newest = [], status.last_round
        strange = {_NUMBERS.sub("#", text): text for text in unusual(status)}
        new = [key for key in strange if key not in self._unusual]
        lines += [
            f"{status.name}: {strange[key]}"
            for key in new
            if now_s - self._said_at_s.get(key, -inf) >= PLAIN_PROGRESS_S
        ]
        self._said_at_s |= dict.fromkeys(new, now_s)
        if self._was_full and not is_disk_full(status):
            lines.append(f"{status.name}: {ROOM_AGAIN}")
        self._was_full = is_disk_full(status)
        state = f"{status.state} {'' if status.state == 'training' else _NUMBERS.sub('#', status.reason)}"
        if newest is not None and newest.index != self._round and self._round is not None:
            lines.append(f"{status.name}: {round_line(status)}")
        elif state != self._state:
            lines.append(peer_line(status))
        if (last := ending(status)) and not self._has_ended:
            lines.append(last)
        self._has_ended = bool(last)
        self._round, self._state, self._unusual = newest.index if newest else 0, state, frozenset(strange)
        waits = status.state != "training" and status.reason != self._reason
        if not lines and now_s - self._said_s >= (PLAIN_PROGRESS_S if waits else PLAIN_SILENCE_S):
            lines.append(
                f"{peer_line(status)}; {next_round(status)}" if status.round_target_tokens else peer_line(status)
            )
        if lines:
            self._said_s, self._reason = now_s, status.reason
        return lines


def peer_line(status: PeerStatus) -> str:
    """The peer's state in one line."""
    if status.state != "training":
        return printable(f"{status.name}: {state_and_reason(status)}")
    parts = [state_phrase(status), f"round {status.index}", speed(status)]
    parts += [of_the_run(status)] if status.eta_s is not None else []
    return printable(f"{status.name}: {', '.join(parts)}")


def peer_picture(status: PeerStatus) -> RenderableType:
    """The panel: what is unusual, progress bars and the rows of `potluck status`."""
    if last := ending(status):
        return Panel(
            Text(f"{last}\n{printable(state_and_reason(status))}"),
            title=Text(f"{status.name} in {printable(status.run)}"),
        )
    strange = [Text(with_folder(text), style="bold yellow") for text in unusual(status)]
    state = rows_of_text([("state", state_and_reason(status))], style="bold")
    title = f"{printable(own_name(status))} in {printable(status.run or 'a run')} (Ctrl-C leaves)"
    rows = rows_of_text(status_rows(status))
    return Panel(Group(*strange, bars_of(_bars(status)), Text(""), state, rows), title=Text(title))


def _bars(status: PeerStatus) -> list[tuple[float, str]]:
    """Progress of a download while there is one, otherwise of the run and its next round."""
    if status.download_bytes_all:
        here, everything = in_bytes(status.download_bytes_here), in_bytes(status.download_bytes_all)
        donors = several(status.download_donors, "peer")
        text = f"{status.download_what}: {here} of {everything} from {donors}, {time_left(status.download_left_s)}"
        return [(status.download_bytes_here / status.download_bytes_all, text)]
    bars = [(status.total_tokens / max(1, status.target_total_tokens), progress(status))]
    return bars + ([(status.round_share, next_round(status))] if status.round_target_tokens else [])
