"""The coordinator's metrics for /metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from averaging.metrics.metric_table import metrics_body
from coordinator.status.metrics.host_metrics import HOST_METRICS
from coordinator.status.metrics.moment import Moment
from coordinator.status.metrics.run_metrics import RUN_METRICS

COORDINATOR_METRICS: Final = (*RUN_METRICS, *HOST_METRICS)


def render_metrics(look: Callable[[], Moment]) -> bytes:
    """The body of /metrics."""
    return metrics_body(COORDINATOR_METRICS, look)
