"""A Chrome trace of one round from a peer's spans: pure. Such a file is read by ui.perfetto.dev and by chrome://tracing.

The format is the "JSON Object Format" of the Trace Event Format document: complete events ("ph": "X") in microseconds. The peer is
one process. It has a thread for local training, one for held-out losses, which pause training, and one for each kind of work of
each unit. Events of one thread must not partly overlap, so parallel work of one kind, such as sending to two peers, gets a thread
each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

Row = Mapping[str, object]

TRAINING: Final = "training"
MEASURING: Final = "training evaluate"
MEASURED: Final = "evaluate"
LAST_OF_A_ROUND: Final = "adopt"
FIRST_OF_A_ROUND: Final = "snapshot"
EVENT_ARGUMENTS: Final = {"unit": "unit", "round_index": "round", "num_bytes": "bytes", "detail": "detail"}
"""The span fields copied to an event's arguments, with the names they get there."""


def newest_round(spans: Sequence[Row]) -> list[Row]:
    """The spans around the newest finished round of each unit, from the earliest snapshot to the latest adoption. Includes
    everything that overlaps this time. Empty before there is a finished round.
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


def training_summary(spans: Sequence[Row]) -> str:
    """Training in these spans, as the middle of a sentence; "" with fewer than two steps."""
    steps = [(begin_s, _end(span)) for lane, begin_s, span in _placed(spans) if lane == TRAINING]
    if len(steps) < 2 or steps[-1][1] <= steps[0][0]:
        return ""
    whole_s, trained_s = steps[-1][1] - steps[0][0], sum(end_s - begin_s for begin_s, end_s in steps)
    longest_s = max(max(0.0, begin_s - end_s) for (_, end_s), (begin_s, _) in pairwise(steps))
    return f"in which it trained {trained_s / whole_s:.1%} of {whole_s:.1f} s and stood still for {longest_s:.2f} s at most"


@dataclass(frozen=True, slots=True)
class Bar:
    """A span in its lane, in seconds after the earliest span."""

    begin_s: float
    end_s: float


def bars_by_lane(spans: Sequence[Row]) -> dict[str, list[Bar]]:
    """The lanes of a trace in their order, each with its bars from left to right, which never overlap."""
    first_s = min((_begin(span) for span in spans), default=0.0)
    found = defaultdict[str, list[Bar]](list)
    for lane, begin_s, span in _placed(spans):
        found[lane].append(Bar(begin_s - first_s, _end(span) - first_s))
    return {lane: found[lane] for lane in sorted(found, key=_lane_order)}


def chrome_trace(spans: Sequence[Row], peer: str) -> dict[str, object]:
    """The content of the file for these spans of one peer."""
    first_s = min((_begin(span) for span in spans), default=0.0)
    placed = list(_placed(spans))
    found = sorted({lane for lane, _, _ in placed}, key=_lane_order)
    lanes = {lane: number for number, lane in enumerate(found, 1)}
    named: list[dict[str, object]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"peer {peer}"}}]
    for lane, number in lanes.items():
        named.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": lane}})
        named.append({"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": number, "args": {"sort_index": number}})
    events = [
        {
            "ph": "X",
            "name": span["name"],
            "cat": span["unit"] or TRAINING,
            "ts": round((begin_s - first_s) * 1e6, 1),
            "dur": round((_end(span) - begin_s) * 1e6, 1),
            "pid": 1,
            "tid": lanes[lane],
            "args": {name: span[key] for key, name in EVENT_ARGUMENTS.items() if span.get(key)},
        }
        for lane, begin_s, span in placed
    ]
    return {"traceEvents": named + events, "displayTimeUnit": "ms"}


def _placed(spans: Sequence[Row]) -> Iterator[tuple[str, float, Row]]:
    """Each span's lane and its begin there, then the span. A training step may be reported late, so its begin is moved to avoid an
    overlap with the previous step.
    """
    until_s = defaultdict[str, list[float]](list)
    for span in sorted(spans, key=_begin):
        lane, begin_s, end_s = _lane(span), _begin(span), _end(span)
        ends = until_s[lane]
        if lane == TRAINING and ends:
            begin_s = min(max(begin_s, ends[0]), end_s)
            ends[0] = max(ends[0], end_s)
            yield lane, begin_s, span
            continue
        track = next((number for number, end in enumerate(ends) if end <= begin_s), len(ends))
        ends[track : track + 1] = [end_s]
        yield f"{lane} {track + 1}" if track else lane, begin_s, span


def _begin(span: Row) -> float:
    return float(str(span["begin_s"]))


def _end(span: Row) -> float:
    return float(str(span["end_s"]))


def _lane(span: Row) -> str:
    if not span["unit"]:
        return MEASURING if span["name"] == MEASURED else TRAINING
    return f"{span['unit']} {span['name']}"


def _lane_order(lane: str) -> tuple[bool, bool, str]:
    return lane != TRAINING, not lane.startswith(MEASURING), lane
