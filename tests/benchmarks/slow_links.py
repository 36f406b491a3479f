"""`python -m tests.benchmarks.slow_links --json FILE [--quick] [--parts ...]`: does training wait for slow links?

- wire: real daemons and training processes with 51.5 million values, each in a namespace behind its own line (slow_wire.py). A step
  sleeps for 0.4 s instead of computing, a round is due at 100 of them. Judged is the share of the time in which a training process
  trains: snapshots, shifts and evaluations are no training, and whatever keeps it from its next step neither. One swarm goes
  through all rates, so that its pacers have to follow. Peers that are suspected, or left out of a round, are counted.
- virtual: half an hour of virtual time at the slowest line, the production round machine on the in-memory seams.
- auto: `local_steps = "auto"` against the best fixed number of steps, in that simulation, at four rates (slow_links_virtual.py).
- real: the same rule with real processes at one rate.
"""

from __future__ import annotations

import argparse
import logging
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import structlog

from averaging.models.llama.config import LlamaConfig
from protocol.errors import MachineError
from protocol.run.data_section import DataSection
from protocol.run.host_sections import CheckpointSection
from protocol.run.manifest import RunConfig, RunSection
from protocol.run.round_section import RoundSection
from protocol.run.traffic import round_bytes, update_bytes
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.benchmarks.fault_watch import COMMITTED, GONE, PROPOSED
from tests.benchmarks.logs import LogFollower
from tests.benchmarks.processes import open_children
from tests.benchmarks.recovery_swarm import NEVER_TOKENS, Commit, commits_of
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.benchmarks.slow_links_virtual import MOST_OFF, UTILISATION, auto_rows, virtual_rows
from tests.benchmarks.slow_wire import Wire, open_wire
from tests.benchmarks.swarm import Swarm, start_swarm, wait_until
from tests.benchmarks.timed_peer import TIMED_PEER
from tests.benchmarks.timed_worker import SLEEP_VARIABLE, TIMES_VARIABLE, read_times, trained_share
from tests.benchmarks.wire_core import WireSpec

BENCH: Final = "slow_links"
MODEL: Final = LlamaConfig(dim=512, num_layers=16, num_heads=8, num_kv_heads=8, ffn_dim=1408, context_tokens=32)
"""51.5 million values, 206 MB in float32."""

CODEC: Final = "e3m0"
STEP_S: Final = 0.4
STEPS_A_ROUND: Final = 100
BATCH_TOKENS: Final = MODEL.context_tokens
LONGEST_S: Final = 1200.0
COUNTED: Final = re.compile(r"committed: (\d+) counted")
LOOK_EVERY_S: Final = 1.0
ROUND_LIMIT_S: Final = 300.0
WATCH_LIMIT_S: Final = 900.0
"""For the commits that a point is to have at least."""


@dataclass(frozen=True, slots=True)
class Point:
    """Lines, the least share of the time that a worker is to train, and for how long that is looked at: so many rounds, or seconds,
    and longer where a round is to be committed in it and was not by then."""

    wire: WireSpec
    least_share: float = 0.0
    num_rounds: int = 0
    watch_s: float = 0.0
    least_commits: int = 0

    @property
    def name(self) -> str:
        """In the table."""
        return str(self.wire)


SLOWEST: Final = WireSpec(1e6, 0.1, 0.01)
POINTS: Final = (
    Point(WireSpec(100e6, 0.02), 0.98, 2),
    Point(WireSpec(50e6, 0.02), 0.97, 1),
    Point(WireSpec(10e6, 0.02), 0.90, 2),
    # the line was faster a moment before; 213 s is what one round's bytes take on it at best, after 40 s of steps
    Point(SLOWEST, watch_s=300.0, least_commits=1),
)
QUICK: Final = (
    replace(POINTS[0], num_rounds=1),
    replace(POINTS[2], num_rounds=1),
    replace(POINTS[3], watch_s=60.0, least_commits=0),
)
REAL_WIRE: Final = WireSpec(20e6, 0.02)
REAL_FIRST_STEPS: Final = 20
REAL_ROUNDS: Final = 10
REAL_JUDGED: Final = 4


@dataclass(frozen=True)
class Seen:
    """Of one point.

    Attributes:
        shares: of each peer's time in which it trained.
        num_commits: of the swarm in this time.
        round_s: between two commits.
        false_deaths: who took whom for dead, each once.
        num_partial: commits that left somebody out.
        lasted_s: that it was looked at.
    """

    shares: Sequence[float]
    num_commits: int
    round_s: Sequence[float]
    false_deaths: Sequence[str]
    num_partial: int
    lasted_s: float


def run_config(num_peers: int, **round_keys: object) -> RunConfig:
    """The run of this benchmark, with rounds due at STEPS_A_ROUND of each peer."""
    sources = Path(__file__).parents[2] / "protocol"
    target = {"target_tokens": num_peers * STEPS_A_ROUND * BATCH_TOKENS, "longest_interval_s": LONGEST_S}
    return RunConfig(
        run=RunSection(name="slow links", total_tokens=NEVER_TOKENS, min_members=num_peers, max_members=8),
        model=MODEL,
        data=DataSection(source="text", glob=f"{sources}/**/*.py", heldout_every=5),
        inner=InnerSection(learning_rate=0.001, batch_tokens=BATCH_TOKENS),
        round=RoundSection.model_validate({**target, "codec": CODEC, **round_keys}),
        checkpoint=CheckpointSection(every_rounds=1 << 16),
    )


@contextmanager
def swarm_on(wire: Wire, directory: Path, config: RunConfig) -> Iterator[Swarm]:
    """A host and a peer in each place, with paced training processes that write down when they train."""
    directory.mkdir(parents=True)
    corners = [
        replace(place, prefix=("env", f"{TIMES_VARIABLE}={times_file(directory, number)}", *place.prefix))
        for number, place in enumerate(wire.places.peers, 1)
    ]
    with open_children(directory / "logs") as children:
        swarm = start_swarm(
            children,
            directory,
            replace(wire.places, peers=tuple(corners)),
            config,
            peer_environment={SLEEP_VARIABLE: str(STEP_S)},
            peer_flags=("--device", "cpu", "--num-threads", "1"),
            peer_module=TIMED_PEER,
        )
        try:
            yield swarm
        finally:
            swarm.close_logs()


def times_file(directory: Path, number: int) -> Path:
    """The file that a peer's training process writes."""
    return directory / f"times-{number}.jsonl"


# --- looking ------------------------------------------------------------------------------------------------------------------


def await_commits(swarm: Swarm, num_commits: int, since_s: float) -> float:
    """Until the first peer has seen so many commits since then (Unix seconds); returns when the last of them was.

    Raises:
        MachineError: they do not come.
    """
    found: Sequence[Commit] = ()

    def are_there() -> bool:
        nonlocal found
        found = commits_of(swarm.peers[1], since_s, time.time() + 1.0)
        return len(found) >= num_commits

    limit_s = ROUND_LIMIT_S * num_commits
    if not wait_until(are_there, limit_s, LOOK_EVERY_S):
        raise MachineError(f"{len(found)} commits in {limit_s:.0f} s", f"{num_commits}", "look at the peers' logs")
    return found[num_commits - 1].unix_s


def watch(swarm: Swarm, directory: Path, point: Point) -> Seen:
    """One point on a running swarm, whose lines are as the point wants them: from a commit to another, or for a while."""
    now_s = time.time()
    begin_s = now_s if point.watch_s else await_commits(swarm, 1, now_s)
    if point.watch_s:
        time.sleep(point.watch_s)
        wait_until(
            lambda: len(commits_of(swarm.peers[1], begin_s, time.time())) >= point.least_commits,
            WATCH_LIMIT_S - point.watch_s,
            LOOK_EVERY_S,
        )
        end_s = time.time()
    else:
        end_s = await_commits(swarm, 1 + point.num_rounds, now_s)
        time.sleep(2 * STEP_S)  # its last steps are written down
    commits = commits_of(swarm.peers[1], begin_s, end_s + 1e-3)
    times_s = [begin_s, *(commit.unix_s for commit in commits if commit.unix_s > begin_s)]
    return Seen(
        [_share(directory, number, begin_s, end_s) for number in sorted(swarm.peers)],
        len(times_s) - 1,
        [later - earlier for earlier, later in pairwise(times_s)],
        false_deaths(swarm, begin_s, end_s),
        num_partial(swarm, begin_s, end_s),
        end_s - begin_s,
    )


def _share(directory: Path, number: int, begin_s: float, end_s: float) -> float:
    share = trained_share(read_times(times_file(directory, number)), begin_s, end_s)
    if share is None:
        raise MachineError(f"fewer than two steps of peer {number}", "a peer that trains")
    return share


def false_deaths(swarm: Swarm, begin_s: float, end_s: float) -> Sequence[str]:
    """The peers that suspected somebody; no peer is gone."""
    found = set()
    for peer in swarm.peers.values():
        peer.log.poll()
        for line in peer.log.since(begin_s):
            match = GONE.search(line.text)
            if line.unix_s > end_s:
                continue
            if match is not None:
                found.add(f"{peer.short} of {match.group(1)}")
            elif "a reducer died" in line.text:
                found.add(f"{peer.short} of a reducer")
    return sorted(found)


def num_partial(swarm: Swarm, begin_s: float, end_s: float) -> int:
    """Commits of this time in which not everybody was counted, by the log of whoever has most: who was left out may not have them."""

    def of_log(log: LogFollower) -> int:
        counted = (COUNTED.search(line.text) for line in log.since(begin_s) if line.unix_s <= end_s)
        return sum(int(match.group(1)) < len(swarm.peers) for match in counted if match is not None)

    return max(of_log(peer.log) for peer in swarm.peers.values())


# --- wire and real ------------------------------------------------------------------------------------------------------------


def measure_wire(directory: Path, num_peers: int, points: Sequence[Point]) -> list[Row]:
    """All points on one swarm, the fastest lines first."""
    rows = []
    with open_wire(num_peers) as wire, swarm_on(wire, directory, run_config(num_peers)) as swarm:
        for point in points:
            wire.become(point.wire)
            seen = watch(swarm, directory, point)
            print(num_peers, point.name, seen, flush=True)
            rows += _wire_rows(num_peers, point, seen)
    return rows


def _wire_rows(num_peers: int, point: Point, seen: Seen) -> list[Row]:
    size = update_bytes(CODEC, model_schema(MODEL).num_elements, 16384)
    each_way, _ = round_bytes(size, size, num_peers, reduces=True)
    settings: Mapping[str, object] = {
        "peers": num_peers,
        "codec": CODEC,
        "values": model_schema(MODEL).num_elements,
        "steps_a_round": STEPS_A_ROUND,
        "step_s": STEP_S,
        "rate_bit_per_s": point.wire.rate_bit_per_s,
        "delay_one_way_s": point.wire.delay_s,
        "loss": point.wire.loss,
        "bytes_each_way": each_way,
        "commits": seen.num_commits,
        "round_s": [round(one, 1) for one in seen.round_s],
        "watched_s": round(seen.lasted_s, 1),
        "machine": machine(),
    }
    shares = sorted(seen.shares, reverse=True)
    name = f"{num_peers} peers, {point.name}"
    target = f">= {point.least_share:g}" if point.least_share else ""
    rows = [
        Row(
            BENCH,
            f"{name}: share of the time that a worker trains",
            round(statistics.median(shares), 4),
            "share",
            None,
            None,
            target,
            shares[-1] >= point.least_share if point.least_share else None,
            len(shares),
            {"best": round(shares[0], 4), "worst": round(shares[-1], 4)},
            settings,
        ),
        _count(f"{name}: taken for dead", len(seen.false_deaths), "= 0", not seen.false_deaths, settings),
        _count(f"{name}: commits without somebody", seen.num_partial, "= 0", not seen.num_partial, settings),
    ]
    if point.watch_s:
        target, is_met = "", None
        if point.least_commits:
            target, is_met = f">= {point.least_commits}", seen.num_commits >= point.least_commits
        rows.append(_count(f"{name}: commits in {seen.lasted_s:.0f} s", seen.num_commits, target, is_met, settings))
    return rows


def _count(metric: str, value: int, target: str, is_met: bool | None, settings: Mapping[str, object]) -> Row:
    return Row(BENCH, metric, value, "", None, None, target, is_met, 1, settings=settings)


def measure_real(directory: Path) -> list[Row]:
    """The measured rule with two real peers at one rate: its last rounds, by the log of who leads."""
    round_keys = {
        "local_steps": "auto",
        "first_local_steps": REAL_FIRST_STEPS,
        "target_tokens": 2 * 1000 * BATCH_TOKENS,
    }
    with open_wire(2) as wire, swarm_on(wire, directory, run_config(2, **round_keys)) as swarm:
        wire.become(REAL_WIRE)
        begin_s = time.time()
        await_commits(swarm, REAL_ROUNDS, begin_s)
        seen = rounds_by_log(swarm, begin_s)[-REAL_JUDGED:]
    round_s, exchange_s = (sum(one[place] for one in seen) / len(seen) for place in (0, 1))
    fewest = exchange_s / UTILISATION / STEP_S
    steps = round_s / STEP_S
    settings = {
        "peers": 2,
        "codec": CODEC,
        "wire": str(REAL_WIRE),
        "exchange_s": round(exchange_s, 2),
        "machine": machine(),
    }
    ratio = steps / fewest
    return [
        Row(
            BENCH,
            f"auto, overlap, {REAL_WIRE}, real: steps a round, against the fewest that keep {UTILISATION}",
            round(steps, 2),
            "steps",
            round(fewest, 2),
            round(ratio, 4),
            f"1 +- {MOST_OFF:g} x, or a step",
            abs(ratio - 1.0) <= MOST_OFF or abs(steps - fewest) <= 1.0,
            len(seen),
            {"best": round(min(one[0] for one in seen), 2), "worst": round(max(one[0] for one in seen), 2)},
            settings,
        )
    ]


def rounds_by_log(swarm: Swarm, begin_s: float) -> list[tuple[float, float]]:
    """Seconds from each proposal to the next, and from it to its commit, as the first peer heard of them."""
    proposed: dict[int, float] = {}
    committed: dict[int, float] = {}
    for line in swarm.peers[1].log.since(begin_s):
        if match := PROPOSED.search(line.text):
            proposed.setdefault(int(match.group(1)), line.unix_s)
        if match := COMMITTED.search(line.text):
            committed.setdefault(int(match.group(1)), line.unix_s)
    whole = [index for index in sorted(proposed) if index in committed and index + 1 in proposed]
    return [(proposed[index + 1] - proposed[index], committed[index] - proposed[index]) for index in whole]


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.slow_links", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="two peers, three points, one round each, one rate")
    parser.add_argument("--parts", default="wire,virtual,auto,real", help="by commas")
    parser.add_argument("--peers", default="2,4", help="of the wire, by commas")
    parser.add_argument("--logs", type=Path, help="a new folder in which the peers' logs and states stay")
    options = parser.parse_args(arguments)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING)
    )  # simulated peers log here
    parts, is_quick = options.parts.split(","), options.quick
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="potluck-slow-links-") as temporary:
        folder = options.logs or Path(temporary)
        for num_peers in (2,) if is_quick else [int(word) for word in options.peers.split(",")]:
            if "wire" in parts:
                rows += measure_wire(folder / f"{num_peers}", num_peers, QUICK if is_quick else POINTS)
            if "virtual" in parts:
                rows += virtual_rows(num_peers)
            write_rows(rows, options.json)  # a later part may fail
        if "auto" in parts:
            rows += auto_rows(is_quick=is_quick)
        if "real" in parts and not is_quick:
            rows += measure_real(folder / "real")
    write_rows(rows, options.json)
    print_rows(rows, "slow links: does training wait for them?")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
