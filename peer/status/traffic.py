"""Payload of each round, and the rows that show it.

A round's payload is counted from one commit to the next, as seen by this process.

The same rows show the totals of this process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from averaging.network.seams.interfaces import BulkCount, ControlCount, TrafficCount
from peer.status.status import BulkTraffic, ControlTraffic
from protocol.ids import CommitId, UnitName

KEPT_ROUNDS: Final = 256
_NOTHING: Final = TrafficCount(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class RoundBytes:
    """Payload since the previous commit, or since the process started at the first one. `up` and `down` cover both lanes. `control`
    lists the control lane's part by channel, `bulk` the rest by way, channel, unit and codec. In a run with several units this
    includes the other units' bytes of the same time.
    """

    up: int
    down: int
    control_up: int = 0
    control_down: int = 0
    bulk: tuple[BulkCount, ...] = ()
    control: tuple[ControlCount, ...] = ()


class RoundTraffic:
    """Call `committed` at each commit. If several missed rounds come together, the first one gets all the bytes."""

    def __init__(self) -> None:
        self._before = _NOTHING
        self._before_of_units: dict[UnitName, TrafficCount] = {}
        self._rounds: dict[CommitId, RoundBytes] = {}

    def committed(self, commit: CommitId, traffic: TrafficCount) -> RoundBytes:
        """The bytes of this round."""
        taken = _between(self._before, traffic)
        self._before = traffic
        self._rounds[commit] = taken
        if len(self._rounds) > KEPT_ROUNDS:
            del self._rounds[next(iter(self._rounds))]
        return taken

    def other_unit_committed(self, unit: UnitName, traffic: TrafficCount) -> RoundBytes:
        """At a commit of a unit other than the spine: its own bulk bytes since its previous commit. Control messages are not split
        by unit.
        """
        own = tuple(count for count in traffic.bulk if count.kind.unit == unit)
        up, down = sum(count.bytes_up for count in own), sum(count.bytes_down for count in own)
        before, now = self._before_of_units.get(unit, _NOTHING), TrafficCount(0, 0, up, down, own)
        self._before_of_units[unit] = now
        return _between(before, now)

    def of(self, commit: CommitId) -> RoundBytes | None:
        """The bytes of a round; None if this process did not see it or has dropped it."""
        return self._rounds.get(commit)


def _between(before: TrafficCount, now: TrafficCount) -> RoundBytes:
    kinds = {count.kind: count for count in before.bulk}
    bulk = (_moved(kinds.get(count.kind, BulkCount(count.kind, 0, 0)), count) for count in now.bulk)
    channels = {count.channel: count for count in before.control}
    control = (_said(channels.get(count.channel, ControlCount(count.channel, 0, 0)), count) for count in now.control)
    return RoundBytes(
        now.bytes_up - before.bytes_up,
        now.bytes_down - before.bytes_down,
        now.control_bytes_up - before.control_bytes_up,
        now.control_bytes_down - before.control_bytes_down,
        tuple(count for count in bulk if count.bytes_up or count.bytes_down),
        tuple(count for count in control if count.bytes_up or count.bytes_down),
    )


def _moved(before: BulkCount, now: BulkCount) -> BulkCount:
    return BulkCount(now.kind, now.bytes_up - before.bytes_up, now.bytes_down - before.bytes_down)


def _said(before: ControlCount, now: ControlCount) -> ControlCount:
    return ControlCount(now.channel, now.bytes_up - before.bytes_up, now.bytes_down - before.bytes_down)


def since_start(traffic: TrafficCount) -> RoundBytes:
    """Everything that this process has moved."""
    control = (traffic.control_bytes_up, traffic.control_bytes_down)
    return RoundBytes(traffic.bytes_up, traffic.bytes_down, *control, traffic.bulk, traffic.control)


def traffic_fields(moved: RoundBytes) -> dict[str, object]:
    """The traffic fields of a `PeerStatus` or a `LastRound`."""
    return {
        "bytes_up": moved.up,
        "bytes_down": moved.down,
        "control_bytes_up": moved.control_up,
        "control_bytes_down": moved.control_down,
        "control": tuple(map(_control, moved.control)),
        "bulk": tuple(map(_bulk, moved.bulk)),
    }


def traffic_row(moved: RoundBytes | None) -> dict[str, object]:
    """The same fields for the list of rounds, all None for a round that this process did not see."""
    if moved is None:
        return dict.fromkeys(traffic_fields(RoundBytes(0, 0)))
    control = [_control(count).model_dump() for count in moved.control]
    return traffic_fields(moved) | {"control": control, "bulk": [_bulk(count).model_dump() for count in moved.bulk]}


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
