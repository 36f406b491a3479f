"""One snapshot of the run and of the host, from which metrics are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from averaging.metrics.metric_table import MetricRow
from averaging.network.seams.interfaces import BulkCount, ControlCount
from averaging.storage.disk_room import DiskRoom
from coordinator.energy.run_energy import NO_ENERGY, EnergySums
from coordinator.helper.reach_core import Reach
from coordinator.ledger.run_memory import RunPast
from coordinator.progress.run_view import NO_PAST, RunPicture
from coordinator.push.push_core import PushState
from coordinator.scores.score_core import TaskCurve


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters of the process since its start.

    Attributes:
        calls: by rpc name and outcome ("ok", "refused", "failed"); both sets are closed.
        control_bytes_up, control_bytes_down, bulk_bytes_up, bulk_bytes_down: payload bytes of the coordinator's own network.
        bulk, control: the same by kind and by channel.
    """

    calls: tuple[tuple[str, str, int], ...] = ()
    control_bytes_up: int = 0
    control_bytes_down: int = 0
    bulk_bytes_up: int = 0
    bulk_bytes_down: int = 0
    bulk: tuple[BulkCount, ...] = ()
    control: tuple[ControlCount, ...] = ()


NO_REACH: Final = Reach()


@dataclass(frozen=True, slots=True)
class Moment:
    """One snapshot.

    Attributes:
        picture: the run.
        now_s: monotonic seconds.
        disk: free space of the host's disk; None if unknown.
        trouble: a problem of the host's machine; empty for none.
        past: older rounds, and peers as earlier processes of the host heard them.
        reach: whether peers can meet.
        scores: curves of the tasks.
        push: of checkpoints; None where there is none.
        energy: of all peers.
        leaders: rows of an open run's leaderboard.
    """

    picture: RunPicture
    counts: Counts
    now_s: float
    disk: DiskRoom | None = None
    trouble: str = ""
    past: RunPast = NO_PAST
    reach: Reach = NO_REACH
    scores: Sequence[TaskCurve] = ()
    push: PushState | None = None
    energy: EnergySums = NO_ENERGY
    leaders: Sequence[Mapping[str, object]] = ()


CoordinatorMetric: TypeAlias = MetricRow[Moment]
