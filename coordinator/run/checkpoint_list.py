"""The list of a run's checkpoints: a host's from its ledger, a peer's from what it fetched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from averaging.host.daemon_views import WIDTH, table
from coordinator.ledger.ledger import LEDGER_FILE, LossPoint
from coordinator.run.hosted_folder import host_folder, require_run
from coordinator.run.named_checkpoint import FOLDER, list_fetched
from protocol.tables import bits, in_bytes, number, printable, whole
from protocol.tensors.spines import SPINES

if TYPE_CHECKING:
    from averaging.state.run_model import PeerModels
    from coordinator.ledger.ledger import CheckpointRow

NONE_YET: Final = (
    "no checkpoint yet: a host writes one every few rounds, by every_rounds in its run.toml; "
    "a peer has a model of its own: potluck generate latest"
)
"""In place of an empty list."""

_HEADER: Final = ("ROUND", "TOKENS", "DATE", "BITS/BYTE", "SIZE", "NAME")
_HELDOUT: Final = "heldout"

_RUNS: Final = "runs"
"""In a peer's folder: the runs that it joined."""

Row = Mapping[str, object]


def list_checkpoints(state_dir: Path | None, load_models: Callable[[], PeerModels]) -> list[dict[str, object]]:
    """The checkpoints of a run, oldest first: index, commit, root, total_tokens, name, path, unix_s, num_bytes, and
    heldout_nats_per_byte at its round, None if nobody measured it. Neither host nor peer need run.

    Raises:
        ConfigError: no run was hosted from there, and none joined.
    """
    folder = host_folder(state_dir)
    may_be_a_peers = state_dir is None or (state_dir / _RUNS).exists()
    if not (folder / LEDGER_FILE).exists() and may_be_a_peers:
        models = load_models()  # imports torch
        run_folder = models.run_folder(state_dir or models.state_dir(), "")
        if run_folder is not None:
            return [_measured(row, {}) for row in list_fetched(run_folder)]
    return _hosted(folder)


def _hosted(folder: Path) -> list[dict[str, object]]:
    ledger_file = require_run(folder)
    from coordinator.history.history_rows import past_blocks
    from coordinator.ledger.ledger import open_ledger

    with open_ledger(ledger_file) as ledger:
        rows, points = ledger.checkpoints(), ledger.loss_points()
        past = [each for unit in SPINES for block in past_blocks(ledger, unit) for each in block.rounds]
    losses = {each.index: each.heldout for each in past if each.heldout is not None} | _heldout(points)
    return [_measured(checkpoint_json(row, (folder / FOLDER).absolute()), losses) for row in rows]


def _heldout(points: Sequence[LossPoint]) -> dict[int, float]:
    """The held-out loss by round, in nats per byte. Of several measurements of a round the first stands, as on the page."""
    losses: dict[int, float] = {}
    for point in points:
        if point.kind == _HELDOUT:
            losses.setdefault(point.index, point.nats)
    return losses


def _measured(row: Row, losses: Mapping[int, float]) -> dict[str, object]:
    index = row["index"]
    loss = losses.get(index) if isinstance(index, int) else None
    return {**row, "num_bytes": _size(Path(str(row["path"]))), "heldout_nats_per_byte": loss}


def _size(path: Path) -> int | None:
    """Bytes of the checkpoint's files; None if its folder is gone."""
    try:
        return sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    except OSError:
        return None


def checkpoint_lines(rows: Sequence[Row], columns: int = WIDTH) -> list[str]:
    """The list for people, in so many columns. `verify`, `export` and `generate` take its rounds and names."""
    if not rows:
        return [NONE_YET]
    cells = [
        (
            whole(row["index"]),
            whole(row["total_tokens"]),
            _date(row["unix_s"]),
            bits(row["heldout_nats_per_byte"]),
            in_bytes(row["num_bytes"]),
            row["name"],
        )
        for row in rows
    ]
    folder = printable(Path(str(rows[-1]["path"])).parent)
    right = frozenset({"ROUND", "TOKENS", "BITS/BYTE", "SIZE"})
    return [f"in {folder}", *table(_HEADER, cells, right=right, columns=columns)]


def _date(unix_s: object) -> str:
    seconds = number(unix_s)
    return "-" if seconds is None else datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def checkpoint_json(row: CheckpointRow, folder: Path) -> Row:
    """One checkpoint below `folder`, as /api/status and `potluck checkpoint list` show it."""
    return {
        "index": row.index,
        "commit": row.commit.hex(),
        "root": row.state_root.hex(),
        "total_tokens": row.total_tokens,
        "name": row.path,
        "path": str(folder / row.path),
        "unix_s": row.written_unix_s,
    }
