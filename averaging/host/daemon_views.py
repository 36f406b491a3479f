"""The status of this machine's daemons, as text for people and as JSON for scripts. Fetching it is not done here."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from protocol.identity.chosen_name import called
from protocol.identity.names import peer_name
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId
from protocol.tables import bits, duration, in_bytes, number, printable, short_count, whole

Row = Mapping[str, object]

WIDTH: Final = 80
"""Columns of the usual narrowest terminal; wider lines would wrap in mails and bug reports."""

_WHOLE: Final = 500
"""Columns of a table that no terminal shows: a pipe or a file cuts nothing."""

_REASON_WIDTH: Final = 400
"""Columns of a table whose last one is a reason, which is read and may wrap."""

_HOSTED: Final = ("PHASE", "ROUND", "TOKENS", "OF", "SIZE", "NAME")
_JOINED: Final = ("RUN", "ROUND", "SIZE", "NAME")
"""The column that may be long comes last, and is cut."""

_NUMBERS_OF_RUNS: Final = frozenset({"ROUND", "TOKENS", "OF", "SIZE"})

_GONE: Final = frozenset({"left", "banned", "away", "silent"})
"""States of peers that do not take part now."""

_NAMED: Final = 3
"""Members of a round that its line in the table names."""


@dataclass(frozen=True, slots=True)
class DaemonView:
    """The status of a daemon at one moment.

    Attributes:
        kind: "host" or "peer".
        folder: its state folder.
        is_running: whether it answered just now.
        note: if it did not answer, that it does not run and how to start it, in one sentence.
        status: its present or last status; empty if nothing is known.
        lines: the status for people.
        peers: the peers that it knows, each with at least "peer" and "name".
        rounds: its run's latest rounds, oldest first.
    """

    kind: str
    folder: str
    is_running: bool
    note: str
    status: Row
    lines: Sequence[str] = ()
    peers: Sequence[Row] = ()
    rounds: Sequence[Row] = ()


class LocalDaemon(Protocol):
    """A kind of daemon, the host or the peer, and access to this machine's own one."""

    LOG_NAME: str

    def folder_of(self, state_dir: Path | None, /) -> Path:
        """Its state folder: the given one, or the configured one."""
        ...

    def is_here(self, folder: Path, /) -> bool:
        """Whether it has ever run from the folder."""
        ...

    def read_daemon(self, folder: Path, /) -> DaemonView:
        """Fetch its status. Blocks, at most some seconds."""
        ...

    def runs(self, folder: Path, /) -> list[Row]:
        """The runs that it keeps in the folder."""
        ...

    def settings(self, folder: Path, /) -> dict[str, object]:
        """The settings that it runs with or ran with last."""
        ...

    def secrets(self, folder: Path, /) -> list[bytes]:
        """Values that must never leave the machine."""
        ...


def columns_of_output() -> int:
    """Columns of a table on standard output: those of the terminal, WIDTH at least, and all of it elsewhere."""
    return max(WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else _WHOLE


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: frozenset[str] = frozenset(),
    columns: int | None = None,
) -> list[str]:
    """Lines of at most so many columns, those of the output if None. Columns named in `right` are aligned right, and the last one is
    cut if it is too long.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in header:
        grid.add_column(name, justify="right" if name in right else "left", no_wrap=name != header[-1])
    for row in rows:
        grid.add_row(*(Text(printable(cell), no_wrap=True, overflow="ellipsis") for cell in row))
    width = columns_of_output() if columns is None else columns
    lines = Console(width=width, color_system=None).render_lines(grid, pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def rows_of(value: object) -> list[Row]:
    """The objects in a list of objects; anything else is left out."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def status_json(views: Sequence[DaemonView]) -> dict[str, object]:
    """For `potluck status --json`: {"host": ..., "peer": ...}, None for a daemon that this machine does not have."""
    found: dict[str, object] = {"host": None, "peer": None}
    for view in views:
        found[view.kind] = {
            "folder": view.folder,
            "is_running": view.is_running,
            "note": view.note,
            "status": dict(view.status) or None,
        }
    return found


def _titled(view: DaemonView, lines: Sequence[str]) -> list[str]:
    if view.is_running:
        return [f"{view.kind}, running, in {view.folder}", *lines]
    return [f"{view.kind}, not running, in {view.folder}; its last status:", *lines] if view.status else [view.note]


def status_text(views: Sequence[DaemonView]) -> list[str]:
    """Each daemon's lines under its title. If none runs, only what one has left: the error that follows says that none runs."""
    if any(view.is_running for view in views):
        blocks = [_titled(view, view.lines) for view in views]
    else:
        blocks = [[f"last status of the {view.kind} in {view.folder}", *view.lines] for view in views if view.status]
    return [line for number, block in enumerate(blocks) for line in (["", *block] if number else block)]


def _by_kind(views: Sequence[DaemonView], kept: Mapping[str, Sequence[Row]]) -> dict[str, object]:
    found: dict[str, object] = {"host": None, "peer": None}
    return found | {view.kind: [dict(row) for row in kept[view.kind]] for view in views}


def peers_json(views: Sequence[DaemonView]) -> dict[str, object]:
    """For `potluck peers --json`: {"host": [...], "peer": [...]}, None for a daemon that this machine does not have."""
    return _by_kind(views, {view.kind: view.peers for view in views})


def rounds_json(views: Sequence[DaemonView], last: int) -> dict[str, object]:
    """For `potluck rounds --json`: as `peers_json`, the newest `last` rounds, oldest first."""
    return _by_kind(views, {view.kind: view.rounds[-last:] for view in views})


class PeerOrder(Enum):
    """The sort key of a list of peers."""

    NAME = "name"
    COUNTED = "counted"
    SPEED = "speed"


def sorted_peers(view: DaemonView, order: PeerOrder) -> DaemonView:
    """The same view with its peers in another order: by name, or with the largest number first."""

    def place(row: Row) -> tuple[float, str]:
        key = {PeerOrder.COUNTED: "tokens_counted", PeerOrder.SPEED: "tokens_per_s"}.get(order)
        found = number(row.get(key)) if key is not None else None
        return -(found or 0.0), str(row.get("name"))

    return replace(view, peers=sorted(view.peers, key=place))


def peers_text(views: Sequence[DaemonView]) -> list[str]:
    """One table for each daemon; nothing if none runs."""
    return _tables(views, [_peers_table(view.peers) for view in views])


def rounds_text(views: Sequence[DaemonView], last: int, columns: int = WIDTH) -> list[str]:
    """One table of so many columns for each daemon, the newest `last` rounds, oldest first; nothing if none runs."""
    return _tables(views, [_rounds_table(view.rounds[-last:], _names(views), columns) for view in views])


def _tables(views: Sequence[DaemonView], tables: Sequence[Sequence[str]]) -> list[str]:
    lines: list[str] = []
    if not any(view.is_running for view in views):
        return lines
    for view, rows in zip(views, tables, strict=True):
        if len(views) > 1 or not view.is_running:
            lines += [""] * bool(lines) + _titled(view, ())
        lines += rows
    return lines


def _peers_table(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return ["no peer is known"]
    cells = [
        (
            row.get("name") or "?",
            shown_state(row),
            *_at_work(row),
            short_count(row.get("tokens_counted")),
            _lasted(row.get("here_s")),
            _lasted(row.get("last_seen_s")),
        )
        for row in rows
    ]
    header = ["NAME", "STATE", "ROUND", "TOKENS/S", "BITS/BYTE", "COUNTED", "HERE", "SILENT"]
    shown = [list(cell) for cell in cells]
    if all(row.get("here_s") is None for row in rows):  # only a host knows it
        header.pop(6)
        shown = [[*cell[:6], cell[7]] for cell in shown]
    if any(number(row.get("left_out")) for row in rows):
        header.insert(6, "OUT")
        shown = [[*cell[:6], _percent(row.get("left_out")), *cell[6:]] for cell, row in zip(shown, rows, strict=True)]
    right = frozenset({"ROUND", "TOKENS/S", "BITS/BYTE", "COUNTED", "OUT"})
    return [*table(header, shown, right=right), *_standing_table(rows), *_chosen_tables(rows)]


def _standing_table(rows: Sequence[Row]) -> list[str]:
    """The standing of each peer that came by the open door; nothing in a run by invite. Only a host knows of audits and of the reason,
    which is told whole.
    """
    juniors = [row for row in rows if row.get("standing") not in (None, "", PeerStanding.KEEPER.word)]
    if not juniors:
        return []
    cells = [[row.get("name") or "?", row.get("standing")] for row in juniors]
    if not any(row.get("standing_reason") for row in juniors):
        return ["", *table(("NAME", "STANDING"), cells)]
    header, columns = ("NAME", "STANDING", "PASSED", "FAILED", "WHY"), ("audits_passed", "audits_failed")
    counts = [[whole(row.get(column)) for column in columns] for row in juniors]
    why = [
        [*cell, *count, row.get("standing_reason") or "-"]
        for cell, count, row in zip(cells, counts, juniors, strict=True)
    ]
    return ["", *table(header, why, right=frozenset({"PASSED", "FAILED"}), columns=_REASON_WIDTH)]


def _at_work(row: Row) -> tuple[str, str, str]:
    """The cells of round, speed and loss; no speed of a peer that is gone."""
    is_gone = shown_state(row) in _GONE
    index = row.get("index") or None if is_gone else row.get("index")
    return whole(index), whole(None if is_gone else row.get("tokens_per_s")), bits(row.get("loss"))


def _chosen_tables(rows: Sequence[Row]) -> list[str]:
    """The names and teams that peers chose, beside their own names, and the teams by counted tokens; nothing where none chose any."""
    chosen = [row for row in rows if row.get("nickname") or row.get("team")]
    if not chosen:
        return []
    cells = [[row.get("name") or "?", row.get("nickname") or "-", row.get("team") or "-"] for row in chosen]
    lines = ["", *table(("NAME", "NICKNAME", "TEAM"), cells)]
    teams = dict[str, list[float]]()
    for row in chosen:
        if row.get("team"):
            teams.setdefault(str(row["team"]), []).append(number(row.get("tokens_counted")) or 0.0)
    largest = sorted(teams.items(), key=lambda item: (-sum(item[1]), item[0]))
    sums = [[short_count(sum(tokens)), len(tokens), team] for team, tokens in largest]
    return (
        [*lines, "", *table(("COUNTED", "PEERS", "TEAM"), sums, right=frozenset({"COUNTED", "PEERS"}))]
        if sums
        else lines
    )


def named_row(row: Row) -> str:
    """A peer's own name, with the name and the team that it chose: "calm-otter (anna, team oak)"."""
    team = str(row.get("team") or "")
    chosen = ", ".join(filter(None, (str(row.get("nickname") or ""), f"team {team}" if team else "")))
    return called(str(row.get("name") or "?"), chosen)


def shown_state(row: Row) -> str:
    """The state of a peer for people: that it is banned before anything else."""
    return "banned" if row.get("is_banned") is True else str(row.get("state") or "?")


def _lasted(seconds: object) -> str:
    return "-" if number(seconds) is None else duration(seconds)


def _rounds_table(rows: Sequence[Row], names: Mapping[str, str], columns: int) -> list[str]:
    if not rows:
        return ["no round was committed yet"]
    cells = [
        (
            whole(row.get("index")),
            str(row.get("commit") or "?")[:8],
            whole(row.get("total_tokens")),
            _percent(row.get("coverage")),
            str(len(rows_of(row.get("omitted")))),
            _members(row, names) + (" (alone)" if row.get("lone") is True else ""),
        )
        for row in rows
    ]
    header = ("ROUND", "COMMIT", "TOKENS", "COVERED", "OUT", "MEMBERS")
    return table(header, cells, right=frozenset({"ROUND", "TOKENS", "COVERED", "OUT"}), columns=columns)


def runs_json(hosted: Sequence[Row], joined: Sequence[Row]) -> dict[str, object]:
    """For `potluck runs --json`: {"host": [...], "peer": [...]}."""
    return {"host": [dict(row) for row in hosted], "peer": [dict(row) for row in joined]}


def runs_text(hosted: Sequence[Row], joined: Sequence[Row]) -> list[str]:
    """Each folder's runs in a table below its name, and a line for each that is damaged."""
    blocks = [[f"hosted from {printable(row.get('folder'))}", *_runs_table([row], _HOSTED)] for row in hosted]
    of_folder: dict[str, list[Row]] = {}
    for row in joined:
        of_folder.setdefault(str(row.get("folder")).rpartition("/")[0], []).append(row)
    blocks += [[f"joined, in {printable(folder)}", *_runs_table(rows, _JOINED)] for folder, rows in of_folder.items()]
    return [line for number, block in enumerate(blocks) for line in (["", *block] if number else block)]


def _runs_table(rows: Sequence[Row], header: tuple[str, ...]) -> list[str]:
    cells = [
        {
            "NAME": _run_name(row),
            "RUN": str(row.get("folder")).rpartition("/")[2],
            "PHASE": row.get("phase") or "?",
            "ROUND": whole(row.get("index")),
            "TOKENS": whole(row.get("total_tokens")),
            "OF": whole(row.get("target_total_tokens")),
            "SIZE": in_bytes(row.get("disk_bytes")),
        }
        for row in rows
    ]
    lines = table(header, [[cell[name] for name in header] for cell in cells], right=_NUMBERS_OF_RUNS)
    return lines + [printable(f"cannot be read whole: {row['note']}") for row in rows if row.get("note")]


def _run_name(row: Row) -> str:
    if row.get("is_joined") is False:
        return "not joined: its host never let this peer in"
    return f"{row.get('name') or '?'}{' (last)' if row.get('is_last') is True else ''}"


def _percent(share: object) -> str:
    found = number(share)
    return "-" if found is None else f"{100 * found:.0f}%"


def _members(row: Row, names: Mapping[str, str]) -> str:
    weights = row.get("weights")
    shares = {str(peer): number(share) or 0.0 for peer, share in weights.items()} if isinstance(weights, dict) else {}
    largest = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{names.get(peer) or peer_name(PeerId(peer))} {100 * share:.0f}%" for peer, share in largest[:_NAMED]]
    more = [f"{len(largest) - _NAMED} more"] if len(largest) > _NAMED else []
    return f"{len(largest)}: " + ", ".join(shown + more) if largest else "-"


def _names(views: Sequence[DaemonView]) -> dict[str, str]:
    return {str(row.get("peer")): str(row.get("name")) for view in views for row in view.peers}
