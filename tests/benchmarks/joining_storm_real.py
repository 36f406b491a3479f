"""Newcomers that start at once beside members whose rounds go on: real processes on loopback.

The newcomers run at a lower priority, since on machines of their own they would take no processor of the members. Rounds follow the
clock. A round is disturbed if it comes late, or if a member did not commit it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from protocol.errors import MachineError
from tests.benchmarks.places import Place
from tests.benchmarks.processes import family_of, open_children
from tests.benchmarks.recovery_swarm import LARGE, TINY, Commit, commits_of, open_swarm, run_config
from tests.benchmarks.results import Row, machine
from tests.benchmarks.swarm import BenchPeer, Swarm, wait_until

BENCH: Final = "joining_storm"
MOST_TIMES_BEFORE: Final = 1.25
"""Of the median interval between two commits, while newcomers join."""

SLOWDOWN: Final = 8.0
"""Members train at an eighth of their speed, so that several of them and the newcomers fit on one machine."""

LOWER_BY: Final = 5
LOWEST_PRIORITY: Final = 19
JOIN_LIMIT_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class RealPlan:
    """Members, newcomers, seconds from one round to the next, rounds before the newcomers come, and the size of the state."""

    num_members: int
    num_joiners: int
    interval_s: float
    num_rounds: int
    is_large: bool


def real_rows(folder: Path, plan: RealPlan) -> list[Row]:
    """The members' rounds while all newcomers join, against those before.

    Raises:
        MachineError: the members did not start, or a newcomer did not join in time.
    """
    config = run_config(LARGE if plan.is_large else TINY, plan.num_members, plan.interval_s)
    with open_children(folder) as children, open_swarm(children, folder / "run", config, SLOWDOWN) as swarm:
        members = list(swarm.peers.values())
        before_s = time.time()
        if not wait_until(lambda: len(_commits(members, before_s)) > plan.num_rounds, plan.num_rounds * 60.0, 0.5):
            raise MachineError(f"{len(_commits(members, before_s))} rounds came", f"{plan.num_rounds} within the time")
        began_s = time.time()
        joined_s = _join_all(swarm, plan)
        ended_s = time.time()
        calm, storm = _commits(members, before_s, began_s), _commits(members, began_s, ended_s)
    return _rows(plan, calm, storm, joined_s)


def _commits(members: Sequence[BenchPeer], since_s: float, until_s: float = float("inf")) -> list[Commit]:
    """The commits in this time, each at the moment when the last of the members had it."""
    latest: dict[int, list[float]] = {}
    for member in members:
        for commit in commits_of(member, since_s, until_s):
            latest.setdefault(commit.index, []).append(commit.unix_s)
    return [Commit(index, max(at)) for index, at in sorted(latest.items()) if len(at) == len(members)]


def _join_all(swarm: Swarm, plan: RealPlan) -> list[float]:
    """Start all newcomers at once; the seconds after which each of them trained, in order."""
    first, begun_s = len(swarm.peers) + 1, time.monotonic()
    swarm.places = replace(swarm.places, peers=(Place(),) * (plan.num_members + plan.num_joiners))
    joiners = [swarm.start_peer(first + number) for number in range(plan.num_joiners)]
    trained: dict[int, float] = {}

    def have_all() -> bool:
        for joiner in joiners:
            _lower(joiner)
            status = joiner.status() if joiner.number not in trained else None
            if status is not None and status.state == "training" and status.tokens_trained > 0:
                trained[joiner.number] = time.monotonic() - begun_s
        return len(trained) == len(joiners)

    if not wait_until(have_all, JOIN_LIMIT_S, 0.5):
        raise MachineError(f"{len(trained)} of {len(joiners)} joined", f"all within {JOIN_LIMIT_S:.0f} s")
    return sorted(trained.values())


def _lower(peer: BenchPeer) -> None:
    """Let members and their children go before a newcomer and its own."""
    lower = min(os.getpriority(os.PRIO_PROCESS, 0) + LOWER_BY, LOWEST_PRIORITY)
    for process in family_of(peer.running.process.pid):
        with suppress(ProcessLookupError):
            if os.getpriority(os.PRIO_PROCESS, process.pid) < lower:
                os.setpriority(os.PRIO_PROCESS, process.pid, lower)


def _intervals(commits: Sequence[Commit]) -> list[float]:
    return [late.unix_s - early.unix_s for early, late in pairwise(commits)]


def _rows(plan: RealPlan, calm: Sequence[Commit], storm: Sequence[Commit], joined_s: Sequence[float]) -> list[Row]:
    before, during = _intervals(calm), _intervals(storm)
    gaps = len(range(storm[0].index, storm[-1].index + 1)) - len(storm) if storm else 0
    median_s = statistics.median(before)
    found = statistics.median(during) if during else None
    about = {
        "members": plan.num_members,
        "newcomers": plan.num_joiners,
        "interval_s": plan.interval_s,
        "values": "6.3M" if plan.is_large else "tiny",
        "rounds_before": len(before),
        "rounds_during": len(during),
        "machine": machine(),
    }
    name = f"{plan.num_joiners} real newcomers at once"
    spread = {"best": round(min(during), 2), "worst": round(max(during), 2)} if during else {}
    return [
        Row(
            BENCH,
            f"{name}: interval of the members' rounds meanwhile",
            None if found is None else round(found, 2),
            "s",
            round(median_s, 2),
            None if found is None else round(found / median_s, 3),
            f"median <= {MOST_TIMES_BEFORE:g} times that before",
            None if found is None else found <= MOST_TIMES_BEFORE * median_s,
            len(during),
            spread,
            about,
        ),
        Row(
            BENCH,
            f"{name}: rounds that a member did not commit",
            gaps,
            "rounds",
            None,
            None,
            "<= 0",
            gaps <= 0,
            1,
            {},
            about,
        ),
        Row(
            BENCH,
            f"{name}: the last one trains after",
            round(joined_s[-1], 1),
            "s",
            trials=len(joined_s),
            settings=about,
        ),
    ]
