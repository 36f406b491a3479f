"""The host is killed for a minute: do the peers miss a round, and how soon is it back at their head."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from protocol.errors import MachineError
from tests.benchmarks.fault_watch import Watch
from tests.benchmarks.processes import cpu_s, kill_all_of
from tests.benchmarks.recovery_swarm import BENCH, Budget, Commit, await_whole, commits_of, look_for, pace_s
from tests.benchmarks.results import Row, always, at_most
from tests.benchmarks.swarm import Swarm

RESTART_S: Final = 5.0
RESTART_LIMIT_S: Final = 90.0
LEAST_CALM_S: Final = 8.0
"""Some rounds at least, whose pace is compared with."""

LOOK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Absence:
    """One absence of the host.

    Attributes:
        expected: rounds that the pace of before would have made between the first and the last commit of the absence.
        seen: rounds that the slowest peer made in that time.
        longest_gap_s: between two commits of one peer.
        is_complete: whether every round of the absence counts every peer.
        answered_s: from the start of the host's process until /api/status answers.
        restart_s: until it shows the peers' head, too.
        cpu_s: processor seconds of its process until then.
    """

    expected: float
    seen: int
    longest_gap_s: float
    is_complete: bool
    answered_s: float
    restart_s: float
    cpu_s: float

    @property
    def missed(self) -> int:
        """Whole rounds."""
        return max(0, round(self.expected - self.seen))


def measure(swarm: Swarm, budget: Budget, away_s: float) -> list[Absence]:
    """The host goes and comes back, again and again; the peace between is what its absence is compared with."""
    watch, seen = Watch(swarm), []
    longest_s = 0.0
    for trial in range(budget.num_trials):
        if budget.left_s < longest_s:
            print(f"host away: time is up after {trial} of {budget.num_trials} trials", flush=True)
            break
        begin_s = time.monotonic()
        seen.append(_one(watch, away_s, max(LEAST_CALM_S, away_s / 6)))
        longest_s = max(longest_s, time.monotonic() - begin_s)
        print(f"host away: {seen[-1]}", flush=True)
    return seen


def _one(watch: Watch, away_s: float, before_s: float) -> Absence:
    swarm = watch.swarm
    await_whole(swarm)
    calm_s = time.time()
    look_for(watch, before_s)
    gone_s = time.time()
    kill_all_of(swarm.host)
    look_for(watch, away_s)
    back_s = time.time()
    host = swarm.start_host()
    answered_s, restart_s, members = _await_host(swarm, host.started_unix_s)
    before = [pace_s(commits_of(peer, calm_s, gone_s)) for peer in swarm.peers.values()]
    calm_paces = [pace for pace in before if pace is not None]
    if not calm_paces:
        raise MachineError("no two rounds before the host's absence", "a swarm at its pace")
    away = [_between(commits_of(peer, calm_s, back_s), gone_s) for peer in swarm.peers.values()]
    slowest = min(away, key=lambda commits: commits[-1].index - commits[0].index)
    indices = range(slowest[0].index + 1, slowest[-1].index + 1)
    everybody = {peer.peer_id for peer in swarm.peers.values()}
    gaps = [b.unix_s - a.unix_s for commits in away for a, b in pairwise(commits)]
    return Absence(
        expected=round((slowest[-1].unix_s - slowest[0].unix_s) / (sum(calm_paces) / len(calm_paces)), 2),
        seen=slowest[-1].index - slowest[0].index,
        longest_gap_s=round(max(gaps, default=0.0), 3),
        is_complete=all(members.get(index) == everybody for index in indices),
        answered_s=round(answered_s, 3),
        restart_s=round(restart_s, 3),
        cpu_s=round(cpu_s(host), 2),
    )


def _between(commits: Sequence[Commit], gone_s: float) -> Sequence[Commit]:
    """The last commit before the host went, and all after it: whole rounds, whenever the host went."""
    first = max((i for i, commit in enumerate(commits) if commit.unix_s <= gone_s), default=0)
    if not commits:
        raise MachineError("a peer without a round", "commits in its log")
    return commits[first:]


def _await_host(swarm: Swarm, started_s: float) -> tuple[float, float, dict[int, set[str]]]:
    """When it answered and when it was at the peers' head, in seconds since its start; the members of the rounds it then knows."""
    answered_s, wanted = None, 0
    deadline_s = time.monotonic() + RESTART_LIMIT_S
    while time.monotonic() < deadline_s:
        status = swarm.host_status()
        if status is not None and answered_s is None:
            answered_s = time.time() - started_s
            # the peers go on: their head of this moment is the mark
            wanted = max(known.index for peer in swarm.peers.values() if (known := peer.status()) is not None)
        if status is not None and answered_s is not None and status.index >= wanted:
            return answered_s, time.time() - started_s, {row.index: set(row.members) for row in status.rounds}
        time.sleep(LOOK_EVERY_S)
    raise MachineError(f"the host is not at the peers' head after {RESTART_LIMIT_S:.0f} s", "a host that caught up")


def rows(seen: Sequence[Absence], away_s: float, settings: dict[str, object]) -> list[Row]:
    """Rounds missed, peers lost, and the time of the restart with the part until it answers at all."""
    name = f"host killed for {away_s:.0f} s"
    missed = sorted(float(one.missed) for one in seen)
    details = {
        **settings,
        "rounds_expected": [one.expected for one in seen],
        "rounds_seen": [one.seen for one in seen],
        "longest_gap_s": [one.longest_gap_s for one in seen],
    }
    count = Row(BENCH, f"{name}: rounds missed", None, "rounds", target="= 0", settings=details)
    if missed:
        spread = {"best": missed[0], "worst": missed[-1]}
        median = missed[len(missed) // 2]
        count = Row(
            BENCH, count.metric, median, "rounds", None, None, "= 0", missed[-1] == 0, len(seen), spread, details
        )
    return [
        count,
        always(BENCH, f"{name}: every round counts every peer", [one.is_complete for one in seen], settings),
        at_most(BENCH, f"{name}: from its start to the peers' head", [o.restart_s for o in seen], RESTART_S, settings),
        at_most(BENCH, f"{name}: of that, processor time of the host", [o.cpu_s for o in seen], None, settings),
        at_most(BENCH, f"{name}: of that, until it answers", [o.answered_s for o in seen], None, settings),
    ]
