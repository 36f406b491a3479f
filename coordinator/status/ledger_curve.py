"""The curve of a hosted run, from its ledger, whether its host runs or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from averaging.curves.curve import Curve, CurvePoint
from coordinator.history.history_rows import past_blocks
from coordinator.history.past_rounds import PastRound
from coordinator.ledger.ledger import LEDGER_FILE, CommitRow, LossPoint, open_ledger
from coordinator.run.hosted_folder import host_folder
from coordinator.run.hosted_runs import hosted_runs, spine_in
from protocol.rounds.messages.wire import decode_certificate, decode_record


def read_curve(state_dir: Path | None, run: str = "") -> Curve | None:
    """The curve of the run that is hosted from a folder; None if there is none, or another run is asked for. Blocks.

    Raises:
        StorageError: the ledger is damaged.
    """
    folder = host_folder(state_dir)
    if not (folder / LEDGER_FILE).exists():
        return None
    (row,) = hosted_runs(folder)
    name, run_id = str(row["name"] or "?"), str(row["run_id"] or "")
    if run and run != name and not (len(run) >= 4 and run_id.startswith(run.lower())):
        return None
    with open_ledger(folder / LEDGER_FILE) as ledger:
        unit = spine_in(ledger)
        past = [each for block in past_blocks(ledger, unit) for each in block.rounds]
        rows, losses = ledger.commits(unit), ledger.loss_points()
    return Curve(name, run_id[:16], (*past_points(past), *curve_points(rows, losses)))


def past_points(rounds: Sequence[PastRound]) -> list[CurvePoint]:
    """The rounds of the far past, of which the ledger has no commits any more."""
    return [
        CurvePoint(each.index, each.seen_unix_s, each.total_tokens, each.num_members, None, each.heldout, each.train)
        for each in rounds
    ]


def curve_points(rows: Sequence[CommitRow], losses: Sequence[LossPoint]) -> list[CurvePoint]:
    """The rounds of the longest lineage; of several, of the one seen last."""
    by_id = {row.commit: row for row in rows}
    here = max(rows, key=lambda row: (row.index, row.seen_unix_s), default=None)
    heldout, train = _mean_by_round(losses, "heldout"), _mean_by_round(losses, "train")
    points: list[CurvePoint] = []
    while here is not None:
        record = decode_record(decode_certificate(here.certificate).record)
        members = len(record.contributors)
        losses_here = heldout.get(here.index), train.get(here.index)
        points.append(CurvePoint(here.index, here.seen_unix_s, record.total_tokens, members, None, *losses_here))
        here = by_id.get(here.parent)
    return points[::-1]


def _mean_by_round(losses: Sequence[LossPoint], kind: str) -> Mapping[int, float]:
    values: dict[int, list[float]] = {}
    for point in losses:
        if point.kind == kind:
            values.setdefault(point.index, []).append(point.nats)
    return {index: sum(of_round) / len(of_round) for index, of_round in values.items()}
