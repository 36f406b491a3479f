"""A Chrome trace of one round from a peer's spans: pure. Such a file is read by ui.perfetto.dev and by chrome://tracing.

The format is the "JSON Object Format" of the Trace Event Format document: complete events ("ph": "X") with microseconds, one process
for the peer, a thread for local training and one for each kind of work of each unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

Row = Mapping[str, object]

TRAINING: Final = "training"
LAST_OF_A_ROUND: Final = "adopt"
FIRST_OF_A_ROUND: Final = "snapshot"


def newest_round(spans: Sequence[Row]) -> list[Row]:
    """The spans around the newest finished round of each unit: from the first of their snapshots to the last of their adoptions, with
    everything that went on meanwhile. Empty before there is one.
    """
    begins: list[float] = []
    ends: list[float] = []
    for unit in sorted({str(span["unit"]) for span in spans if span["unit"]}):
        own = [span for span in spans if span["unit"] == unit]
        adopted = [_end(span) for span in own if span["name"] == LAST_OF_A_ROUND]
        started = [_begin(span) for span in own if span["name"] == FIRST_OF_A_ROUND]
        before = [begin for begin in started if adopted and begin < adopted[-1]]
        if before:
            begins.append(before[-1])
            ends.append(adopted[-1])
    if not begins:
        return []
    return [span for span in spans if _end(span) >= min(begins) and _begin(span) <= max(ends)]


def chrome_trace(spans: Sequence[Row], peer: str) -> dict[str, object]:
    """The content of the file, for these spans of one peer."""
    first_s = min((_begin(span) for span in spans), default=0.0)
    lanes = {lane: number for number, lane in enumerate(sorted({_lane(span) for span in spans}, key=_lane_order), 1)}
    named: list[dict[str, object]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"peer {peer}"}}]
    for lane, number in lanes.items():
        named.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": lane}})
        named.append({"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": number, "args": {"sort_index": number}})
    events = [
        {
            "ph": "X",
            "name": span["name"],
            "cat": span["unit"] or TRAINING,
            "ts": round((_begin(span) - first_s) * 1e6, 1),
            "dur": round((_end(span) - _begin(span)) * 1e6, 1),
            "pid": 1,
            "tid": lanes[_lane(span)],
            "args": {"detail": span["detail"]},
        }
        for span in spans
    ]
    return {"traceEvents": named + events, "displayTimeUnit": "ms"}


def _begin(span: Row) -> float:
    return float(str(span["begin_s"]))


def _end(span: Row) -> float:
    return float(str(span["end_s"]))


def _lane(span: Row) -> str:
    return f"{span['unit']} {span['name']}" if span["unit"] else TRAINING


def _lane_order(lane: str) -> tuple[bool, str]:
    return lane != TRAINING, lane
