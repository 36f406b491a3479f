"""Writes the scores of a run into its checkpoints: all up to the checkpoint's round, as signed, in a file beside the weights."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from averaging.data.shards import write_whole
from coordinator.scores.score_core import curve_json, task_curve
from protocol.errors import PotluckError, StorageError

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Offload
    from coordinator.ledger.ledger import CheckpointRow
    from coordinator.progress.tracker import RunTracker
    from coordinator.scores.score_core import KnownScore, ScoredTask
    from coordinator.scores.score_rows import ScoreRow
    from coordinator.scores.task_scores import TaskScores

_log = structlog.get_logger()

SCORES_NAME: Final = "scores.json"
"""In a checkpoint's folder. Its manifest does not name it, since scores may come after the checkpoint was written."""

LOOK_EVERY_S: Final = 2.0


def scores_text(
    tasks: Sequence[ScoredTask], scores: Sequence[tuple[ScoreRow, KnownScore]], index: int, run_id_hex: str
) -> str:
    """The contents of a checkpoint's file: each task's curve up to round `index`, and the envelopes that peers signed."""
    kept = [(row, known) for row, known in scores if row.index <= index]
    curves = [task_curve(task, [k for _, k in kept if k.result.task == task.section.name]) for task in tasks]
    signed = [
        {
            "task": row.task,
            "part": row.part + 1,
            "index": row.index,
            "commit": row.commit.hex(),
            "peer": row.peer,
            "envelope": b64encode(row.envelope).decode(),
        }
        for row, _ in kept
    ]
    values = {"run_id": run_id_hex, "tasks": [curve_json(curve) for curve in curves], "signed": signed}
    return json.dumps(values, indent=1) + "\n"


def write_scores(folder: Path, rows: Sequence[CheckpointRow], texts: Sequence[str]) -> None:
    """Write each text into its checkpoint's folder, whole or not at all; a checkpoint that is gone is left out. Blocks.

    Raises:
        StorageError: a file cannot be written.
    """
    for row, text in zip(rows, texts, strict=True):
        path = folder / row.path / SCORES_NAME
        try:
            if path.parent.is_dir() and (not path.exists() or path.read_text(encoding="ascii") != text):
                write_whole(path, text.encode("ascii"))
        except FileNotFoundError:
            continue  # it was pruned meanwhile
        except (OSError, ValueError) as error:
            raise StorageError(f"{path} cannot be written ({error})", "a writable folder with space") from error


async def keep_score_files(
    scores: TaskScores, tracker: RunTracker, folder: Path, run_id_hex: str, offload: Offload
) -> None:
    """Keep the files of all checkpoints current, until cancelled. An error costs the file alone."""
    written: object = None
    while scores.tasks:
        rows, known = tuple(tracker.checkpoints), scores.signed()
        state = (tuple(row.commit for row in rows), scores.changes, tracker.state.head)
        if state != written and known:
            tasks = tuple(scores.tasks.values())
            texts = [scores_text(tasks, known, row.index, run_id_hex) for row in rows]
            try:
                await offload.run(partial(write_scores, folder, rows, texts))
            except PotluckError as error:
                _log.warning("scores_not_written", reason=error.one_line())
            written = state
        await trio.sleep(LOOK_EVERY_S)
