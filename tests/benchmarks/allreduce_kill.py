"""One of the peers is killed when it has sent half of what it has to send: how long the others take, and what they send again."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.allreduce_files import order, result_file
from tests.benchmarks.allreduce_groups import Group, Trial
from tests.benchmarks.allreduce_marks import AFTERWARDS, spans
from tests.benchmarks.allreduce_rows import BENCH, Setting
from tests.benchmarks.places import Places
from tests.benchmarks.processes import kill_all_of
from tests.benchmarks.results import Row
from tests.benchmarks.swarm import wait_until

LIMIT_S: Final = 120.0
HALF: Final = 0.5
WALL_OVER_CALM: Final = 1.3


@dataclass(frozen=True)
class Killed:
    """What the survivors told, and how long they took from the first order of a snapshot to the last new state."""

    wall_s: float
    told: Sequence[dict[str, Any]]

    @property
    def are_identical(self) -> bool:
        """Whether all of them ended with one state."""
        return len({told["digest"] for told in self.told}) == 1


def kill_one(group: Group, places: Places, setting: Setting, codec: str) -> Killed | None:
    """Order a trial and kill the last peer in the middle of it; None when the survivors did not finish. The group is spent then."""
    number, group.num_done = group.num_done, group.num_done + 1
    victim = len(group.running) - 1
    port = places.peers[victim].port
    order(group.folder, number)
    # the bridge's end of its link receives what it sends
    sent = Path(f"/sys/class/net/{port}/statistics/rx_bytes")
    before, half = int(sent.read_text()), HALF * setting.bound_bytes(codec)
    if not wait_until(lambda: int(sent.read_text()) - before >= half, LIMIT_S, 0.002):
        return None
    kill_all_of(group.running[victim])
    group.failed = "one of them was killed"
    files = [result_file(group.folder, rank, number) for rank in range(victim)]
    if not wait_until(lambda: all(file.exists() for file in files), LIMIT_S):
        return None
    told = [json.loads(file.read_text()) for file in files]
    parts = spans([each["steps"] for each in told])
    return Killed(sum(seconds for step, seconds in parts.items() if step not in AFTERWARDS), told)


def least_again(num_peers: int) -> float:
    """What survivors must send beyond an undisturbed upload of 2 (N - 1) / N of a vector, as a share of that, when one is killed that
    has sent all its chunks and no result: one of them takes its slice, to which the others send their chunks once more, and sends that
    result to them; all send theirs to one member less. What they had sent to it of their results comes on top, up to a sixth at four.
    Where the leader is killed there is another attempt (`attempts` says so): of fewer members, so all results are others, and what
    had been sent of the first ones comes on top, up to half.
    """
    survivors = num_peers - 1
    moved = (
        (survivors - 1) / survivors / num_peers
    )  # a survivor's mean, in vectors, once for chunks and once for the result
    results = (survivors - 1) / num_peers
    return round((survivors / num_peers + 2 * moved + results) / (2 * survivors / num_peers) - 1, 4)


def kill_rows(killed: Killed | None, calm: Sequence[Trial], name: str, about: Mapping[str, object]) -> list[Row]:
    """Whether they are identical, how long it took, and what was sent again, as a share of an undisturbed upload."""
    if killed is None or not calm:
        metric = f"{name}: one killed at half of its upload, survivors identical"
        return [Row(BENCH, metric, 0.0, "share", target="= 1", met=False, trials=1, settings=about)]
    name = f"{name}: one killed at half of its upload"
    num_peers = len(killed.told) + 1
    identical = float(killed.are_identical)
    calm_s = statistics.median(trial.wall_s for trial in calm)
    calm_bytes = statistics.median(told["spent"]["bulk_bytes_up"] for trial in calm for told in trial.told)
    sent_bytes = statistics.fmean(told["spent"]["bulk_bytes_up"] for told in killed.told)
    again = max(0.0, sent_bytes / calm_bytes - 1.0)
    about = {**about, "attempts": sorted({told["attempt"] for told in killed.told}), "least": least_again(num_peers)}
    wall = Row(BENCH, f"{name}, wall", round(killed.wall_s, 3), "s", calm_s, round(killed.wall_s / calm_s, 3))
    return [
        Row(BENCH, f"{name}, survivors identical", identical, "share", target="= 1", met=identical == 1.0, trials=1),
        replace(wall, target=f"ratio <= {WALL_OVER_CALM}", met=killed.wall_s <= WALL_OVER_CALM * calm_s, trials=1),
        Row(
            BENCH,
            f"{name}, bytes sent again over an undisturbed upload",
            round(again, 4),
            "share",
            target=f"<= {1 / num_peers:g}",
            met=again <= 1 / num_peers,
            trials=1,
            settings=about,
        ),
    ]
