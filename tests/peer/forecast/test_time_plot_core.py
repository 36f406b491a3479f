from __future__ import annotations

from xml.etree import ElementTree

from peer.forecast.time_plot_core import TimePoint, svg_plot, text_plot

POINTS = [TimePoint(10**6 * 2**power, 0.01 * 3**power) for power in range(12)]


def test_bars_grow_with_time_and_rows_are_few() -> None:
    lines = text_plot(POINTS * 4, "time")
    assert len(lines) <= 17
    bars = [line.count("#") for line in text_plot(POINTS, "time")[1:]]
    assert bars == sorted(bars)
    assert bars[0] >= 1


def test_without_any_point_there_are_no_bars_and_a_picture_of_axes() -> None:
    assert text_plot([], "time") == []
    assert "polyline" in svg_plot([], "time")
    ElementTree.fromstring(svg_plot([], "time"))


def test_the_picture_is_one_document_with_a_point_for_each_size() -> None:
    root = ElementTree.fromstring(svg_plot(POINTS, "a <title> & more"))
    line = next(part for part in root if part.tag.endswith("polyline"))
    assert len(line.attrib["points"].split()) == len(POINTS)
    assert any(part.text == "a <title> & more" for part in root)


def test_one_point_alone_lies_within_the_picture() -> None:
    root = ElementTree.fromstring(svg_plot([TimePoint(10**6, 1.0)], "one"))
    line = next(part for part in root if part.tag.endswith("polyline"))
    x, y = map(float, line.attrib["points"].split(","))
    assert 0 < x < 720
    assert 0 < y < 420
