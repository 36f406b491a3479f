from __future__ import annotations

import json

from peer.status.tracing.trace_core import Row, chrome_trace, newest_round, training_summary


def _span(name: str, unit: str, begin_s: float, end_s: float) -> Row:
    return {"name": name, "unit": unit, "begin_s": begin_s, "end_s": end_s, "detail": ""}


ROUND = [
    _span("compute", "", 0.0, 1.0),
    _span("snapshot", "fragment-0", 1.0, 1.1),
    _span("compute", "", 1.1, 2.0),
    _span("send", "fragment-0", 1.2, 1.8),
    _span("adopt", "fragment-0", 2.0, 2.2),
    _span("compute", "", 2.0, 3.0),
    _span("snapshot", "fragment-0", 4.0, 4.1),
    _span("compute", "", 4.0, 5.0),
]


def test_the_newest_finished_round_is_shown_with_what_went_on_meanwhile() -> None:
    assert newest_round(ROUND) == ROUND[:6]
    assert newest_round(ROUND[:4]) == []


def test_of_several_units_one_round_each_is_shown() -> None:
    other = [_span("snapshot", "embeddings", 0.2, 0.3), _span("adopt", "embeddings", 0.4, 0.5)]
    early = [_span("snapshot", "embeddings", -2.0, -1.9), _span("adopt", "embeddings", -1.8, -1.7)]
    assert newest_round([*early, *other, *ROUND]) == [*other, *ROUND[:6]]


def test_a_trace_has_one_lane_for_training_and_one_for_each_kind_of_work_of_a_unit() -> None:
    trace = chrome_trace(newest_round(ROUND), "calm otter")
    events = trace["traceEvents"]
    assert isinstance(events, list)
    lanes = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert list(lanes) == ["training", "fragment-0 adopt", "fragment-0 send", "fragment-0 snapshot"]
    shown = [event for event in events if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"], event["tid"]) for event in shown][:2] == [
        ("compute", 0.0, 1_000_000.0, lanes["training"]),
        ("snapshot", 1_000_000.0, 100_000.0, lanes["fragment-0 snapshot"]),
    ]
    assert {event["cat"] for event in shown} == {"training", "fragment-0"}


def test_every_event_has_what_trace_viewers_ask_for_and_each_lane_has_a_name() -> None:
    crossing = [_span("send", "fragment-0", 1.2, 1.8), _span("send", "fragment-0", 1.5, 2.5)]
    trace = json.loads(json.dumps(chrome_trace([*ROUND, *crossing, _span("evaluate", "", 0.9, 2.5)], "calm otter")))
    shown = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(shown) == len(ROUND) + 3
    for event in shown:
        assert event.keys() >= {"name", "cat", "ph", "ts", "dur", "pid", "tid"}
        assert min(event["ts"], event["dur"]) >= 0.0
    named = {(event["pid"], event["tid"]) for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in shown} == named
    assert trace["displayTimeUnit"] == "ms"


def test_a_heldout_loss_has_a_lane_beside_training_which_stands_still_meanwhile() -> None:
    spans = [*ROUND, _span("evaluate", "", 0.9, 2.5)]
    events = chrome_trace(newest_round(spans), "calm otter")["traceEvents"]
    assert isinstance(events, list)
    lanes = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert list(lanes)[:2] == ["training", "training evaluate"]
    (measured,) = [event for event in events if event["name"] == "evaluate"]
    assert (measured["ts"], measured["dur"], measured["tid"]) == (900_000.0, 1_600_000.0, lanes["training evaluate"])


def test_what_a_unit_does_twice_at_once_has_two_lanes_since_events_of_one_may_not_cross() -> None:
    crossing = [
        _span("send", "fragment-0", 1.2, 1.8),
        _span("send", "fragment-0", 1.5, 2.0),
        _span("send", "fragment-0", 1.9, 2.1),
    ]
    events = chrome_trace(crossing, "calm otter")["traceEvents"]
    assert isinstance(events, list)
    lanes = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert list(lanes) == ["fragment-0 send", "fragment-0 send 2"]
    tids = [event["tid"] for event in events if event["ph"] == "X"]
    assert tids == [lanes["fragment-0 send"], lanes["fragment-0 send 2"], lanes["fragment-0 send"]]


def test_a_step_of_training_that_was_heard_of_late_begins_where_the_one_before_ended() -> None:
    steps = [_span("compute", "", 0.0, 1.0), _span("compute", "", 0.75, 2.0)]
    events = chrome_trace(steps, "calm otter")["traceEvents"]
    assert isinstance(events, list)
    shown = [(event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert shown == [(0.0, 1_000_000.0), (1_000_000.0, 1_000_000.0)]


def test_a_span_tells_its_unit_its_round_and_its_bytes_where_it_has_them() -> None:
    sent = {**_span("send", "fragment-0", 1.0, 2.0), "detail": "to a", "round_index": 3, "num_bytes": 4096}
    events = chrome_trace([sent, _span("compute", "", 1.0, 2.0)], "calm otter")["traceEvents"]
    assert isinstance(events, list)
    reported = [event["args"] for event in events if event["ph"] == "X"]
    assert reported == [{"unit": "fragment-0", "round": 3, "bytes": 4096, "detail": "to a"}, {}]


def test_how_long_training_stood_still_in_a_round_is_told() -> None:
    assert training_summary(ROUND[:6]) == "in which it trained 96.7% of 3.0 s and stood still for 0.10 s at most"
    late = [_span("compute", "", 0.0, 1.0), _span("compute", "", 0.5, 1.5), _span("compute", "", 1.5, 2.0)]
    assert training_summary(late) == "in which it trained 100.0% of 2.0 s and stood still for 0.00 s at most"
    assert training_summary(ROUND[:2]) == training_summary([]) == ""
