"""The metrics of the host itself: one table, base units, closed label sets."""

from __future__ import annotations

from typing import Final

from averaging.metrics.metric_table import one
from averaging.network.seams.interfaces import BulkKind
from coordinator.status.metrics.moment import CoordinatorMetric

KIND_LABELS: Final = ("way", "channel", "unit", "codec")


def _kind(kind: BulkKind) -> tuple[str, ...]:
    return (kind.way.value, kind.channel, kind.unit, kind.codec)


HOST_METRICS: Final = (
    CoordinatorMetric(
        "potluck_coordinator_checkpoints", "gauge", "Checkpoints on disk.", lambda m: one(len(m.picture.checkpoints))
    ),
    CoordinatorMetric(
        "potluck_coordinator_checkpoint_time_seconds",
        "gauge",
        "Unix time of the newest checkpoint.",
        lambda m: one(m.picture.checkpoints[-1].written_unix_s if m.picture.checkpoints else None),
    ),
    CoordinatorMetric(
        "potluck_coordinator_push_time_seconds",
        "gauge",
        "Unix time at which the newest checkpoint was verified at the address for pushes.",
        lambda m: one(m.push.unix_s if m.push is not None and m.push.pushed else None),
    ),
    CoordinatorMetric(
        "potluck_coordinator_failed_pushes",
        "counter",
        "Pushes of checkpoints that failed.",
        lambda m: one(m.push.failures if m.push is not None else None),
    ),
    CoordinatorMetric(
        "potluck_coordinator_disk_free_bytes",
        "gauge",
        "Free space on the disk of the state folder.",
        lambda m: one(m.disk.free_bytes if m.disk else None),
    ),
    CoordinatorMetric(
        "potluck_coordinator_disk_all_bytes",
        "gauge",
        "Size of the disk of the state folder.",
        lambda m: one(m.disk.all_bytes if m.disk else None),
    ),
    CoordinatorMetric(
        "potluck_coordinator_calls",
        "counter",
        "Calls answered, by name and outcome.",
        lambda m: tuple(((name, outcome), float(count)) for name, outcome, count in m.counts.calls),
        ("call", "outcome"),
    ),
    CoordinatorMetric(
        "potluck_coordinator_sent_bytes",
        "counter",
        "Payload sent to peers.",
        lambda m: ((("control",), float(m.counts.control_bytes_up)), (("bulk",), float(m.counts.bulk_bytes_up))),
        ("lane",),
    ),
    CoordinatorMetric(
        "potluck_coordinator_received_bytes",
        "counter",
        "Payload received from peers.",
        lambda m: ((("control",), float(m.counts.control_bytes_down)), (("bulk",), float(m.counts.bulk_bytes_down))),
        ("lane",),
    ),
    CoordinatorMetric(
        "potluck_coordinator_control_sent_bytes",
        "counter",
        "Payload sent on the control lane.",
        lambda m: tuple(((count.channel,), float(count.bytes_up)) for count in m.counts.control),
        ("channel",),
    ),
    CoordinatorMetric(
        "potluck_coordinator_control_received_bytes",
        "counter",
        "Payload received on the control lane.",
        lambda m: tuple(((count.channel,), float(count.bytes_down)) for count in m.counts.control),
        ("channel",),
    ),
    CoordinatorMetric(
        "potluck_coordinator_bulk_sent_bytes",
        "counter",
        "Payload sent on the bulk lane.",
        lambda m: tuple((_kind(count.kind), float(count.bytes_up)) for count in m.counts.bulk),
        KIND_LABELS,
    ),
    CoordinatorMetric(
        "potluck_coordinator_bulk_received_bytes",
        "counter",
        "Payload received on the bulk lane.",
        lambda m: tuple((_kind(count.kind), float(count.bytes_down)) for count in m.counts.bulk),
        KIND_LABELS,
    ),
)
