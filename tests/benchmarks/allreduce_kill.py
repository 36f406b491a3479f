"""A peer is killed when it has sent half of what it has to send: how long the others take, and what they send again.

One trial after another, each with another victim, the last rank first. The killed peer is started again on the state that it left.
Then as many rounds follow as warmed all peers up for the undisturbed trials: connections are made in them, and the new process learns
its line.

Two figures give the bytes that are sent again, each as a share of a survivor's upload in an undisturbed round. The net one, which has
the target, is what it uploads in all beyond that: what it no longer has to send to the dead is taken off. The gross one is the bytes
of chunks that left it twice: of its contribution, to another reducer, and of results, to the same member, in another attempt.
"""

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
from tests.benchmarks.allreduce_plan import Plan
from tests.benchmarks.allreduce_rows import BENCH, Setting, beside, median_row
from tests.benchmarks.places import Places
from tests.benchmarks.processes import kill_all_of
from tests.benchmarks.recovery_swarm import is_whole
from tests.benchmarks.results import Row, always
from tests.benchmarks.swarm import wait_until

LIMIT_S: Final = 120.0
AGAIN_S: Final = 60.0
"""A peer that was killed is back, and all have averaged with it, and another one was killed: nothing is begun with less time left."""

HALF: Final = 0.5
WALL_OVER_CALM: Final = 1.3


@dataclass(frozen=True)
class Killed:
    """The killed peer, the survivors' reports, and how long they took from the first order of a snapshot to the last new state."""

    victim: int
    wall_s: float
    reported: Sequence[dict[str, Any]]

    @property
    def are_identical(self) -> bool:
        """Whether all of them ended with one state."""
        return len({reported["digest"] for reported in self.reported}) == 1

    @property
    def attempts(self) -> list[int]:
        """Of whose record the survivors speak: the second one where the leader was killed."""
        return sorted({reported["attempt"] for reported in self.reported})

    @property
    def sent_bytes(self) -> float:
        """By a survivor in the mean."""
        return statistics.fmean(reported["spent"]["bulk_bytes_up"] for reported in self.reported)

    @property
    def twice_bytes(self) -> float:
        """Of chunks that left a survivor twice, in the mean."""
        return statistics.fmean(reported["twice_bytes"] for reported in self.reported)


def kill_in_turn(group: Group, places: Places, setting: Setting, codec: str, plan: Plan) -> list[Killed | None]:
    """As many kills as are planned and there is time for; None is one that the survivors did not finish, and the last one."""
    found: list[Killed | None] = []
    for number in range(plan.num_kills):
        victim = (len(group.running) - 1 - number) % len(group.running)
        if found and (plan.left_s < AGAIN_S or not _come_back(group, found[-1], setting.num_warm_ups)):
            print(f"  {len(found)} of {plan.num_kills} kills: no time, or the last one did not come back", flush=True)
            break
        found.append(_kill(group, places, setting, codec, victim))
    return found


def _come_back(group: Group, killed: Killed | None, num_rounds: int) -> bool:
    """Start it again; whether all have averaged with it, so many times, once at least."""
    swarm = group.swarm
    if killed is None or swarm is None:
        return False
    group.running[killed.victim] = swarm.start_peer(killed.victim + 1).running
    if not wait_until(lambda: is_whole(swarm), LIMIT_S, 0.1):
        return False
    group.failed = ""
    trials = [group.trial(LIMIT_S, is_warm_up=True) for _ in range(max(1, num_rounds))]
    everybody = len(group.running)
    return not group.failed and all(
        trial is not None and all(reported["members"] == everybody for reported in trial.reported) for trial in trials
    )


def _kill(group: Group, places: Places, setting: Setting, codec: str, victim: int) -> Killed | None:
    """Order a trial and kill this peer in the middle of it; None when the survivors did not finish."""
    number, group.num_done = group.num_done, group.num_done + 1
    port = places.peers[victim].port
    order(group.folder, number)
    # the bridge's end of its link receives what it sends
    sent = Path(f"/sys/class/net/{port}/statistics/rx_bytes")
    before, half = int(sent.read_text()), HALF * setting.bound_bytes(codec)
    if not wait_until(lambda: int(sent.read_text()) - before >= half, LIMIT_S, 0.002):
        return None
    kill_all_of(group.running[victim])
    group.failed = "one of them was killed"
    files = [result_file(group.folder, rank, number) for rank in range(len(group.running)) if rank != victim]
    if not wait_until(lambda: all(file.exists() for file in files), LIMIT_S):
        return None
    reported = [json.loads(file.read_text()) for file in files]
    parts = spans([each["steps"] for each in reported])
    killed = Killed(victim, sum(seconds for step, seconds in parts.items() if step not in AFTERWARDS), reported)
    print(f"  {group.name}, {victim} killed: {killed.wall_s:.3f} s, attempts {killed.attempts}", flush=True)
    return killed


def least_again(num_peers: int) -> float:
    """The bytes that survivors must send beyond an undisturbed upload of 2 (N - 1) / N of a vector, as a share of that, when one is
    killed that has sent all its chunks and no result: one of them takes its slice, to which the others send their chunks once more,
    and sends that result to them; all send theirs to one member less. Results that they had sent to it come on top, up to a sixth at
    four. If the leader is killed, there is another attempt (`attempts` says so): of fewer members, so all results are others, and what
    had been sent of the first ones comes on top, up to half.
    """
    survivors = num_peers - 1
    moved = (
        (survivors - 1) / survivors / num_peers
    )  # a survivor's mean, in vectors, once for chunks and once for the result
    results = (survivors - 1) / num_peers
    return round((survivors / num_peers + 2 * moved + results) / (2 * survivors / num_peers) - 1, 4)


def kill_rows(
    kills: Sequence[Killed | None], calm: Sequence[Trial], name: str, about: Mapping[str, object]
) -> list[Row]:
    """Whether survivors are identical, how long it took, and what was sent again, net and gross: medians beside undisturbed rounds.
    The choice of the killed peer must not matter, so the worst kill has to keep the targets.
    """
    name = f"{name}: one killed at half of its upload"
    done = [killed for killed in kills if killed is not None]
    identical = [killed is not None and killed.are_identical for killed in kills]
    if not done or not calm:
        return [always(BENCH, f"{name}, survivors identical", identical or [False], about)]
    num_peers = len(done[0].reported) + 1
    calm_bytes = statistics.median(reported["spent"]["bulk_bytes_up"] for trial in calm for reported in trial.reported)
    again = [max(0.0, killed.sent_bytes / calm_bytes - 1.0) for killed in done]
    twice = [killed.twice_bytes / calm_bytes for killed in done]
    each = [
        {
            "victim": killed.victim,
            "attempts": killed.attempts,
            "wall_s": round(killed.wall_s, 3),
            "again": round(net, 4),
            "twice": round(gross, 4),
        }
        for killed, net, gross in zip(done, again, twice, strict=True)
    ]
    about = {**about, "least": least_again(num_peers), "kills": each}
    share, limit, calm_s = "over an undisturbed upload", 1 / num_peers, [trial.wall_s for trial in calm]
    walls_s = [killed.wall_s for killed in done]
    wall = beside(median_row(f"{name}, wall", walls_s, "s", about), calm_s, WALL_OVER_CALM)
    net = median_row(f"{name}, bytes sent again {share}, net", again, "share", about)
    return [
        always(BENCH, f"{name}, survivors identical", identical, about),
        replace(wall, met=max(walls_s) <= WALL_OVER_CALM * statistics.median(calm_s)),
        replace(net, target=f"<= {limit:g}", met=max(again) <= limit),
        median_row(f"{name}, bytes of chunks sent twice {share}, gross", twice, "share", about),
    ]
