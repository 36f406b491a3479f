"""Counters of the network as the status tells them, those of this process and those of one round alike."""

from __future__ import annotations

from averaging.network.seams.interfaces import BulkCount, ControlCount, TrafficCount
from peer.status.round_traffic import RoundBytes
from peer.status.status import BulkTraffic, ControlTraffic


def since_start(traffic: TrafficCount) -> RoundBytes:
    """All that this process has moved."""
    control = (traffic.control_bytes_up, traffic.control_bytes_down)
    return RoundBytes(traffic.bytes_up, traffic.bytes_down, *control, traffic.bulk, traffic.control)


def traffic_told(moved: RoundBytes) -> dict[str, object]:
    """The fields of a `PeerStatus`, or of its `LastRound`."""
    return {
        "bytes_up": moved.up,
        "bytes_down": moved.down,
        "control_bytes_up": moved.control_up,
        "control_bytes_down": moved.control_down,
        "control": tuple(map(_control, moved.control)),
        "bulk": tuple(map(_bulk, moved.bulk)),
    }


def traffic_row(moved: RoundBytes | None) -> dict[str, object]:
    """The same fields in the list of rounds, all None for a round that this process did not see."""
    if moved is None:
        return dict.fromkeys(traffic_told(RoundBytes(0, 0)))
    control = [_control(count).model_dump() for count in moved.control]
    return traffic_told(moved) | {"control": control, "bulk": [_bulk(count).model_dump() for count in moved.bulk]}


def _control(count: ControlCount) -> ControlTraffic:
    return ControlTraffic(channel=count.channel, bytes_up=count.bytes_up, bytes_down=count.bytes_down)


def _bulk(count: BulkCount) -> BulkTraffic:
    kind = count.kind
    return BulkTraffic(
        way=kind.way.value,
        channel=kind.channel,
        unit=kind.unit,
        codec=kind.codec,
        bytes_up=count.bytes_up,
        bytes_down=count.bytes_down,
    )
