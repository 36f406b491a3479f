"""Rows of a table become the text that Prometheus reads."""

from __future__ import annotations

from averaging.metrics.metric_table import MetricRow, metrics_body, one

ROWS = (
    MetricRow[int]("made_bytes", "counter", "Bytes made.", one),
    MetricRow[int]("half", "gauge", "Half of it.", lambda value: ((("left",), value / 2),), ("side",)),
    MetricRow[int]("unknown", "gauge", "Not known.", lambda _: one(None)),
)


def test_each_row_is_read_from_the_same_snapshot_and_a_value_that_is_not_known_has_no_sample() -> None:
    snapshots = iter((6, 60))
    lines = metrics_body(ROWS, lambda: next(snapshots)).decode().splitlines()
    assert "made_bytes_total 6.0" in lines
    assert 'half{side="left"} 3.0' in lines
    assert "# HELP unknown Not known." in lines
    assert not [line for line in lines if line.startswith("unknown")]
    assert next(snapshots) == 60, "the rows of one text are of one moment"
