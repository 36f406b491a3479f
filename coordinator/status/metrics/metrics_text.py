"""The coordinator's metrics for /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from coordinator.status.metrics.host_metrics import HOST_METRICS
from coordinator.status.metrics.moment import Moment
from coordinator.status.metrics.run_metrics import RUN_METRICS

COORDINATOR_METRICS: Final = (*RUN_METRICS, *HOST_METRICS)


class _MomentCollector(Collector):
    def __init__(self, look: Callable[[], Moment]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        moment = self._look()
        for row in COORDINATOR_METRICS:
            kind = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
            family = kind(row.name, row.help, labels=row.labels)
            for labels, value in row.read(moment):
                family.add_metric(labels, value)
            yield family


def render_metrics(look: Callable[[], Moment]) -> bytes:
    """The body of /metrics."""
    registry = CollectorRegistry()
    registry.register(_MomentCollector(look))
    return generate_latest(registry)
