"""`python -m tests.benchmarks.recovery --json FILE [--quick]`: how fast everything is back after a kill, and what is lost by it.

Real processes on this machine; peers idle between steps, so that two cores are enough. Two swarms, and what needs none:

- a peer with 50 MB of state is killed and started again: until a certificate counts it;
- the host is killed for a minute: rounds that peers miss, and its restart;
- joins from 1, 2 and 4 donors behind lines of 20 Mbit/s (needs root for the namespaces);
- the steps of peers that give a joiner its state;
- bytes of catching up after 1 to 20 missed rounds (in the memory world, which counts exactly);
- everything is killed at random moments: rounds lost, files torn, does it go on;
- the coordinator is killed at each SQL statement and file operation of all its ways of writing;
- random mutations of everything that is taken from others or read back from a disk.

Every target is judged by the worst trial, except where a row says otherwise.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from protocol.errors import PotluckError
from tests.benchmarks import (
    everybody_killed,
    host_away,
    incumbents,
    killed_peer,
    missed_rounds,
    mutations,
    striped_join,
    write_points,
)
from tests.benchmarks.processes import open_children
from tests.benchmarks.recovery_swarm import LARGE, TINY, Budget, open_swarm, run_config
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.benchmarks.swarm import Swarm
from tests.coordinator.crash_points import kill_everywhere

SLOWDOWN_LARGE: Final = 20.0
SLOWDOWN_TINY: Final = 25.0
"""A step that another process delays is followed by so many times its length of idling, which must end within a round: who did no step
since the last one has nothing that could be counted.
"""

INTERVAL_LARGE_S: Final = 5.0
INTERVAL_TINY_S: Final = 2.0
NUM_LARGE_PEERS: Final = 3
NUM_TINY_PEERS: Final = 2


@dataclass(frozen=True)
class Plan:
    """How much is measured: trials and seconds of each part, by its name."""

    trials: Mapping[str, int]
    limits_s: Mapping[str, float]
    away_s: float
    joined_values: int
    missed: Sequence[int]
    every_point: int
    seed: int
    only: str = ""
    began_s: float = field(default_factory=time.monotonic)

    def budget(self, part: str) -> Budget:
        """From now on."""
        return Budget(self.trials[part], self.limits_s[part])

    def halves(self, part: str) -> tuple[Budget, Budget]:
        """For two swarms side by side, from now on."""
        half = self.trials[part] // 2
        return Budget(self.trials[part] - half, self.limits_s[part]), Budget(half, self.limits_s[part])


FULL_TRIALS: Final = {"killed": 10, "away": 10, "striped": 10, "incumbents": 10, "everybody": 50, "mutations": 1000}
FULL_LIMITS_S: Final = {"killed": 200.0, "away": 480.0, "incumbents": 250.0, "everybody": 540.0}
QUICK_TRIALS: Final = {"killed": 2, "away": 1, "striped": 1, "incumbents": 1, "everybody": 5, "mutations": 50}
QUICK_LIMITS_S: Final = {"killed": 40.0, "away": 30.0, "incumbents": 40.0, "everybody": 110.0}
QUICK_MISSED: Final = (1, 5, 20)
QUICK_EVERY: Final = 8

Settings = dict[str, object]
Part = Callable[[Path, Plan, Settings, list[Row]], None]
"""Appends its rows one measurement after another: what breaks down later takes none along."""


def large_parts(directory: Path, plan: Plan, settings: Settings, made: list[Row]) -> None:
    """A peer with 50 MB of state comes back; then peers with so much give it to a joiner."""
    own = {**settings, "peers": NUM_LARGE_PEERS, "longest_interval_s": INTERVAL_LARGE_S, "slowdown": SLOWDOWN_LARGE}
    config = run_config(LARGE, NUM_LARGE_PEERS, INTERVAL_LARGE_S)
    with (
        open_children(directory / "logs") as children,
        open_swarm(children, directory, config, SLOWDOWN_LARGE) as swarm,
    ):
        returns = killed_peer.measure(swarm, plan.budget("killed"), INTERVAL_LARGE_S, random.Random(plan.seed))
        made += killed_peer.rows(returns, own)
        joins = incumbents.measure(swarm, plan.budget("incumbents"))
        made += incumbents.rows(joins, {**own, "peers": NUM_LARGE_PEERS - 1})


@contextmanager
def _tiny_swarm(directory: Path) -> Iterator[Swarm]:
    """A checkpoint at every round, so that strikes fall into their writing, too."""
    config = run_config(TINY, NUM_TINY_PEERS, INTERVAL_TINY_S, every_rounds=1)
    with open_children(directory / "logs") as children, open_swarm(children, directory, config, SLOWDOWN_TINY) as swarm:
        yield swarm


def _absences(directory: Path, swarm: Swarm, plan: Plan) -> list[host_away.Absence]:
    """Half of them in another swarm at the same time: most of it is a minute of waiting."""
    if plan.trials["away"] < 2:
        return host_away.measure(swarm, plan.budget("away"), plan.away_s)
    with _tiny_swarm(directory) as other, ThreadPoolExecutor(1) as beside:
        here, there = plan.halves("away")
        others = beside.submit(host_away.measure, other, there, plan.away_s)
        return [*host_away.measure(swarm, here, plan.away_s), *others.result()]


def tiny_parts(directory: Path, plan: Plan, settings: Settings, made: list[Row]) -> None:
    """The host is away; then everything is killed."""
    own = {**settings, "peers": NUM_TINY_PEERS, "longest_interval_s": INTERVAL_TINY_S, "slowdown": SLOWDOWN_TINY}
    with _tiny_swarm(directory) as swarm:
        absences = _absences(directory / "beside", swarm, plan)
        made += host_away.rows(absences, plan.away_s, own)
        deaths = everybody_killed.measure(swarm, plan.budget("everybody"), random.Random(plan.seed))
        made += everybody_killed.rows(deaths, everybody_killed.go_on(swarm), own)


def striped_part(directory: Path, plan: Plan, settings: Settings, made: list[Row]) -> None:
    """Joins from several donors."""
    takes = striped_join.measure(directory, plan.joined_values, plan.trials["striped"])
    made += striped_join.rows(takes, {**settings, "state_bytes": striped_join.state_bytes(plan.joined_values)})


def missed_part(_directory: Path, plan: Plan, settings: Settings, made: list[Row]) -> None:
    """Catching up."""
    made += missed_rounds.rows(missed_rounds.measure(plan.missed), settings)


def points_part(directory: Path, plan: Plan, settings: Settings, made: list[Row]) -> None:
    """The coordinator's writing, cut at every point."""
    every = plan.every_point
    made += write_points.rows(kill_everywhere(directory / "points", every), {**settings, "every": every})


def mutations_part(_directory: Path, plan: Plan, settings: Settings, made: list[Row]) -> None:
    """Damage."""
    each = plan.trials["mutations"]
    made += mutations.rows(mutations.measure(each, plan.seed), {**settings, "each": each})


PARTS: Final[Mapping[str, Part]] = {
    "missed": missed_part,
    "striped": striped_part,
    "large": large_parts,
    "tiny": tiny_parts,
    "points": points_part,
    "mutations": mutations_part,
}


def measure(directory: Path, plan: Plan, settings: Settings) -> list[Row]:
    """All parts, one after another; one that breaks down says so and does not take the others along."""
    made: list[Row] = []
    for name, part in PARTS.items():
        if plan.only not in name:
            continue
        folder = directory / name
        folder.mkdir(parents=True, exist_ok=True)
        begin_s, before = time.monotonic(), machine()
        print(f"== {name}: {before}", flush=True)
        try:
            part(folder, plan, {**settings, "machine_before": before}, made)
        except PotluckError as error:
            print(f"{name}: {error.one_line()}", flush=True)
            made.append(Row("recovery", f"{name}: broken off: {error.found}", None, "", met=False))
        print(f"== {name} took {time.monotonic() - begin_s:.0f} s, {machine()}", flush=True)
    return made


def planned(arguments: Sequence[str]) -> tuple[Plan, argparse.Namespace]:
    """The plan that the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.recovery", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="few trials of each kind, at most five minutes")
    parser.add_argument("--keep", type=Path, help="keep logs and state in this new folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help=f"only parts with this in their name: {', '.join(PARTS)}")
    options = parser.parse_args(arguments)
    if options.quick:
        plan = Plan(
            QUICK_TRIALS, QUICK_LIMITS_S, 15.0, 2_000_000, QUICK_MISSED, QUICK_EVERY, options.seed, options.only
        )
    else:
        plan = Plan(FULL_TRIALS, FULL_LIMITS_S, 60.0, 3_000_000, missed_rounds.MISSED, 1, options.seed, options.only)
    return plan, options


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    plan, options = planned(arguments)
    # the memory world's rounds run in this process, and would tell of themselves between the lines
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory(prefix="potluck-recovery-") as temporary:
        directory = options.keep.absolute() if options.keep else Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        made = measure(directory, plan, {"seed": plan.seed})
    write_rows(made, options.json)
    print_rows(made, "recovery: what a kill costs")
    print(f"machine {machine()}; {time.monotonic() - plan.began_s:.0f} s")
    return 0 if all(row.met is not False for row in made) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
