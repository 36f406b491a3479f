"""The trace of a round that is read from a running peer, until it shows all that a round is made of."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from peer.status.tracing.trace import write_trace
from protocol.errors import PotluckError
from tests.e2e.processes import Running

KINDS = {"compute", "snapshot", "encode", "send", "reduce", "receive", "apply", "adopt"}
LIMIT_S = 500.0
LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Event:
    """One of a trace, in seconds; the unit is "training" for local steps."""

    name: str
    unit: str
    begin_s: float
    end_s: float


def wait_for_whole_trace(peer: Running, folder: Path, target: Path) -> Mapping[str, list[Event]]:
    """Look at a running peer with this state folder, as `potluck status --trace` does, until there was a round with spans of all kinds
    and with local steps between its snapshot and its adoption; all events of that trace by name.
    """
    said = "nothing"
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        try:
            write_trace(folder, target)
        except PotluckError as error:
            said = error.one_line()
        else:
            seen = {}
            for event in _events(target):
                seen.setdefault(event.name, []).append(event)
            if seen.keys() >= KINDS and any(True for _ in trained_meanwhile(seen)):
                return seen
            said = f"spans {sorted(seen)}, none trained on in" if seen.keys() >= KINDS else f"spans {sorted(seen)}"
        if peer.process.poll() is not None:
            break
        with suppress(subprocess.TimeoutExpired):
            peer.process.wait(timeout=LOOK_EVERY_S)
    raise AssertionError(f"no round with {sorted(KINDS)} of a living peer: {said}\n{peer.said()[-2000:]}")


def trained_meanwhile(seen: Mapping[str, list[Event]]) -> Iterator[Event]:
    """The local steps that began after a unit's snapshot and were over before its commit was adopted."""
    for snapshot in seen["snapshot"]:
        adopted_s = [event.begin_s for event in seen["adopt"] if event.unit == snapshot.unit]
        for step in seen["compute"]:
            if any(snapshot.end_s <= step.begin_s and step.end_s <= begin_s for begin_s in adopted_s):
                yield step


def _events(target: Path) -> list[Event]:
    rows = [row for row in json.loads(target.read_text())["traceEvents"] if row["ph"] == "X"]
    return [Event(row["name"], row["cat"], row["ts"] / 1e6, (row["ts"] + row["dur"]) / 1e6) for row in rows]
