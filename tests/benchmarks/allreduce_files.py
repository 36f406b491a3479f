"""How the all-reduce benchmark and the processes that it compares talk: by files in one folder.

`go-<number>` holds the Unix time at which a trial begins, `ready-<rank>` says that a process waits for the first one, and
`result-<rank>-<number>.json` is what came of a trial. A name appears with its whole content.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

LOOK_EVERY_S: Final = 0.05
LEAD_S: Final = 2.0
"""A trial is ordered so long before it begins: what is not measured is made ready meanwhile."""

DELTA_SCALE: Final = 0.01


def seed_of(rank: int) -> int:
    """The seed of a member's vector."""
    return 1000 + rank


def write_whole(path: Path, text: str) -> None:
    """Never seen half written."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf8")
    temporary.rename(path)


def order(folder: Path, number: int) -> float:
    """Order a trial; when it begins, Unix seconds."""
    begins_s = time.time() + LEAD_S
    write_whole(folder / f"go-{number}", repr(begins_s))
    return begins_s


def await_order(folder: Path, number: int) -> float:
    """Wait for the order of a trial, blocking; when it begins."""
    path = folder / f"go-{number}"
    while not path.exists():
        time.sleep(LOOK_EVERY_S)
    return float(path.read_text())


def sleep_until(unix_s: float) -> None:
    """Block until then."""
    time.sleep(max(0.0, unix_s - time.time()))


def ready_file(folder: Path, rank: int) -> Path:
    """A process waits for its first trial."""
    return folder / f"ready-{rank}"


def result_file(folder: Path, rank: int, number: int) -> Path:
    """One process's result of a trial."""
    return folder / f"result-{rank}-{number}.json"


def write_result(folder: Path, rank: int, number: int, reported: Mapping[str, Any]) -> None:
    """Tell what came of it."""
    write_whole(result_file(folder, rank, number), json.dumps(reported))
