from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from peer.status.tracing.round_picture_core import MOST_LANES, round_picture
from peer.status.tracing.trace_core import Row

_SVG = "{http://www.w3.org/2000/svg}"


def _span(name: str, unit: str, begin_s: float, end_s: float) -> Row:
    return {"name": name, "unit": unit, "begin_s": begin_s, "end_s": end_s, "detail": ""}


def _bars(picture: str) -> list[tuple[float, float]]:
    rects = list(ElementTree.fromstring(picture).iter(f"{_SVG}rect"))[1:]
    return [(float(rect.attrib["x"]), float(rect.attrib["width"])) for rect in rects]


def _texts(picture: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(picture).iter(f"{_SVG}text")]


def test_each_lane_has_its_name_and_a_bar_as_long_as_its_work() -> None:
    spans = [_span("compute", "", 10.0, 14.0), _span("send", "model", 11.0, 12.0), _span("send", "model", 11.5, 12.5)]
    picture = round_picture(spans, "calm <otter>")
    assert "the newest round of peer calm <otter>, in seconds" in _texts(picture)
    assert [text for text in _texts(picture) if re.match("training|model", text)] == [
        "training",
        "model send",
        "model send 2",
    ]
    (begin, long), (later, short), _ = _bars(picture)
    assert (later - begin, short) == (pytest.approx(long / 4, abs=0.1), pytest.approx(long / 4, abs=0.1))


def test_bars_apart_stay_apart_and_a_hundred_thousand_spans_make_a_small_file() -> None:
    assert len(_bars(round_picture([_span("compute", "", at_s, at_s + 0.5) for at_s in range(4)], "otter"))) == 4
    many = round_picture([_span("compute", "", at_s, at_s + 0.3) for at_s in range(100_000)], "otter")
    assert len(many) < 100_000


def test_lanes_that_are_too_many_are_counted_in_a_line() -> None:
    spans = [_span("send", f"expert-{number}", 0.0, 1.0) for number in range(MOST_LANES + 3)]
    picture = round_picture(spans, "otter")
    assert "and 3 more" in _texts(picture)
    assert len(_bars(picture)) == MOST_LANES


@pytest.mark.parametrize("length_s", [0.0, 1e-6, 0.03, 7.0, 1e6])
def test_rounds_of_any_length_have_a_few_marks_of_time(length_s: float) -> None:
    marks = [
        text
        for text in _texts(round_picture([_span("adopt", "model", 5.0, 5.0 + length_s)], "otter"))
        if text[0].isdigit()
    ]
    assert 2 <= len(marks) <= 10
