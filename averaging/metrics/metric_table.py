"""A daemon's metrics as rows of a table, in base units and with closed label sets, and the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

Source = TypeVar("Source")
"""The snapshot from which a daemon's metrics are read."""

Samples = Iterable[tuple[tuple[str, ...], float]]
"""(label values, value) for each sample of a metric."""


@dataclass(frozen=True)
class MetricRow(Generic[Source]):
    """One row of the table: a metric's name, its meaning, and how to read it from a snapshot."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    read: Callable[[Source], Samples]
    labels: tuple[str, ...] = ()


def one(value: float | None) -> Samples:
    """The only sample of a metric without labels; none where the value is not known."""
    return () if value is None else (((), float(value)),)


class _TableCollector(Collector, Generic[Source]):
    def __init__(self, rows: Sequence[MetricRow[Source]], snapshot: Callable[[], Source]) -> None:
        self._rows, self._snapshot = rows, snapshot

    def collect(self) -> Iterator[Metric]:
        """All metrics with the values of one snapshot."""
        source = self._snapshot()
        for row in self._rows:
            kind = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
            family = kind(row.name, row.help, labels=row.labels)
            for labels, value in row.read(source):
                family.add_metric(labels, value)
            yield family


def metrics_body(rows: Sequence[MetricRow[Source]], snapshot: Callable[[], Source]) -> bytes:
    """The body of /metrics: every row, read from one snapshot."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_TableCollector(rows, snapshot))
    return generate_latest(registry)
