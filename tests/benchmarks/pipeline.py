"""`python -m tests.benchmarks.pipeline --json FILE [--quick] [--parts exact,speed]`: what pipeline runs keep, each beside its oracle.

exact   in one process: real stages in torch driven by the machines that decide, with messages, kills and speeds in virtual time.
        So equalities, bytes and shares are exact, and nothing of it says how long a step takes on a machine or over a line.
speed   lanes of real processes beside torch's own pipeline, in real time, on a machine that does nothing else (pipeline_speed.py)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import trio
import trio.testing

from averaging.codecs.boundary import Boundary, BoundaryCodec, quantised
from protocol.ids import PeerId, RunId
from protocol.pipeline.lane_stage import LaneConfig, Point
from protocol.pipeline.micro_batch import MicroBatch
from protocol.pipeline.schedule import SCHEDULES, Pass
from protocol.pipeline.synced import SyncedConfig
from tests.benchmarks.pipeline_speed import speed_rows
from tests.benchmarks.placement_trace import Rule, Simulation, Trace, nobody_moves, ours, petals
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.peer.lane_world import LaneWorld, crossed_model, lane_config, run_data_peers, run_lanes
from tests.peer.synced_swarm import open_synced
from tests.peer.synced_world import TorchWorld, run_one_process
from tests.protocol.pipeline.synced_world import Faults, SyncedWorld

BENCH: Final = "pipeline"
STEP_SEEDS: Final = (3, 4, 5)
PARTS: Final = ("exact", "speed")
SPEEDS: Final = (1.0, 2.0, 4.0)


def at_most(metric: str, values: list[float], limit: float, unit: str, settings: dict[str, object]) -> Row:
    """The worst of some figures that are to stay below a limit."""
    worst = max(values)
    spread = {"best": min(values), "worst": worst}
    return Row(BENCH, metric, worst, unit, None, None, f"<= {limit:g}", worst <= limit, len(values), spread, settings)


def at_least(metric: str, values: list[float], limit: float, settings: dict[str, object]) -> Row:
    """The worst of some shares that are to reach a limit."""
    worst = min(values)
    spread = {"best": max(values), "worst": worst}
    return Row(
        BENCH, metric, worst, "share", None, None, f">= {limit:g}", worst >= limit, len(values), spread, settings
    )


def lanes(rounds: int) -> list[Row]:
    """Two lanes of three stages against two data peers, H = 5; and with a member that dies in mid-backward."""
    config, expected_N = lane_config(), run_data_peers(2, rounds, 5)
    off, off_killed = [], []
    for schedule in SCHEDULES:
        config = lane_config(schedule=schedule)
        whole_N = run_lanes([LaneWorld(0, config), LaneWorld(1, config)], rounds)
        killed = LaneWorld(0, config, spares=1)
        killed.kill_when = partial(_dies, killed)
        killed_N = run_lanes([killed, LaneWorld(1, config)], rounds)
        off.append(float((whole_N - expected_N).abs().max()))
        off_killed.append(float((killed_N - expected_N).abs().max()))
    settings: dict[str, object] = {"stages": 3, "inner_steps": 5, "rounds": rounds, "dtype": "float64"}
    return [
        at_most("lanes: 2 x 3 stages against 2 data peers", off, 1e-10, "largest difference", settings),
        at_most("... one member killed in mid-step, a spare", off_killed, 1e-10, "largest difference", settings),
    ]


def _dies(world: LaneWorld, stage: int, order: object) -> bool:
    return stage == 1 and world.num_killed == 0 and "is_backward=True" in str(order) and "step=3" in str(order)


def synced(steps: int) -> list[Row]:
    """Three stages of two replicas against one process."""
    config = SyncedConfig(num_stages=3, num_micro_batches=3, in_flight=6)
    rows = []
    rounds: tuple[tuple[str, Faults, BoundaryCodec | None], ...] = (
        ("synced: 3 stages x 2 replicas, killed in mid-pass", Faults(killed=0.02), None),
        ("... 20% of messages lost", Faults(lost=0.2), None),
        ("... killed, with int8 between them", Faults(killed=0.02), "int8"),
    )
    for metric, faults, codec in rounds:
        off, removed, kills = [], 0, 0
        for seed in STEP_SEEDS:
            cross = partial(quantised, codec=codec) if codec else (lambda values: values)
            world = TorchWorld(config, 2, faults, seed=seed, steps=steps, cross=cross)
            world.run()  # fails where a sum has a micro-batch twice or not at all
            expected_N = (
                run_one_process(world.commits, lambda: crossed_model("int8", "int8"))
                if codec
                else run_one_process(world.commits)
            )
            off.append(float((world.theta() - expected_N).abs().max()))
            removed += sum(len(commit.removed) for commit in world.commits)
            kills += world.num_killed
        settings: dict[str, object] = {"steps": steps, "dtype": "float64", "kills": kills, "lost": removed, "twice": 0}
        rows.append(at_most(metric, off, 1e-10, "largest difference", settings))
    return rows


def speeds() -> Row:
    """Share of the summed speed that replicas of speeds 1 : 2 : 4 come to, in virtual time, messages of 10 to 50 ms each way."""
    shares, num = [], 200
    for seed in STEP_SEEDS:
        config = SyncedConfig(num_stages=1, num_micro_batches=num, in_flight=24, queue=8)
        world = SyncedWorld(config, 3, Faults(), seed=seed, speeds=SPEEDS)
        world.run()
        shares.append(num * 0.1 / sum(SPEEDS) / world.now_s)
    return at_least("replicas of speed 1 : 2 : 4, in virtual time", shares, 0.9, {"micro_batches": num})


def speeds_over_network() -> Row:
    """The same of whole peers: the middle one of three stages has these replicas, the others one that is fast. One step shows what
    each can do; the next one is counted, from its first work to that of the step after it, so sums and the step itself are in it.
    """
    micro_batches, slow_s, shares = 48, 0.8, []
    config = LaneConfig("1f1b", 3, micro_batches, 3, 3, micro_batches, suspect_after_s=4.0)

    async def run() -> None:
        async with open_synced(config, replicas=(1, len(SPEEDS), 1)) as world:
            world.pace_s = dict.fromkeys(world.services, 0.001)
            world.pace_s |= {PeerId(f"stage1peer{n}"): slow_s / speed for n, speed in enumerate(SPEEDS)}
            began_s = dict[int, float]()

            def about(_peer: PeerId, stage: int, at: Point, _work: Pass) -> None:
                if stage == 1:
                    began_s.setdefault(at.step, trio.current_time())

            world.about = about
            await world.rounds.anchor(0)
            ideal_s = 2 * micro_batches * slow_s / sum(SPEEDS)  # each goes forward and backward
            shares.append(ideal_s / (began_s[2] - began_s[1]))

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0.0))
    settings: dict[str, object] = {"micro_batches": micro_batches, "seconds_a_pass": [slow_s / s for s in SPEEDS]}
    return at_least("replicas of speed 1 : 2 : 4, peers on the network in memory", shares, 0.9, settings)


def boundary_bytes() -> list[Row]:
    """Bytes a token and value of the model's width, one direction, heads with them."""
    batch = MicroBatch(RunId(bytes(32)), 0, 0, 0, 0)
    rows = []
    limits: dict[BoundaryCodec, float] = {"int8": 1.03, "int4": 0.53}
    for codec, limit in limits.items():
        shares = [
            Boundary(codec, "forward", 1, batch, (4, 128, dim)).message_bytes / (4 * 128 * dim) for dim in (128, 2048)
        ]
        rows.append(at_most(f"boundary bytes a token, {codec}", shares, limit, "d", {"dims": [128, 2048]}))
    return rows


def placement(hours: float) -> list[Row]:
    """Three rules on one preemption trace."""
    trace = Trace(num_servers=16, num_stages=4, up_s=7200, down_s=3600, hours=hours, seed=1)
    rules: tuple[Rule, ...] = (nobody_moves, petals, ours)
    found = {rule.__name__: Simulation(trace, rule).run() for rule in rules}
    settings: dict[str, object] = {
        "hours": hours,
        **{name: {"share": outcome.share, "moved_bytes": outcome.moved_bytes} for name, outcome in found.items()},
    }
    moved = found["ours"].moved_bytes / max(1, found["petals"].moved_bytes)
    return [
        at_least("placement: share of the optimum on a preemption trace", [found["ours"].share], 0.96, settings),
        at_most("... bytes moved, of what Petals' rule moves", [moved], 0.5, "share", settings),
    ]


def exact_rows(*, is_quick: bool) -> list[Row]:
    """All that is the same on every machine."""
    rows = [*lanes(2), *synced(4 if is_quick else 20), speeds(), speeds_over_network(), *boundary_bytes()]
    return rows + placement(8.0 if is_quick else 32.0)


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    if not set(parts) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"{text!r}: expected some of {','.join(PARTS)}")
    return parts


def main(arguments: Sequence[str]) -> None:
    """All rows, as a table and as JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pipeline", description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parts", type=_parts, default=PARTS, help="exact,speed, which is both")
    options = parser.parse_args(arguments)
    rows = exact_rows(is_quick=options.quick) if "exact" in options.parts else []
    for more in speed_rows(is_quick=options.quick) if "speed" in options.parts else ():
        rows += more
        if options.json:
            write_rows(rows, options.json)  # what was measured stands, also where what follows fails
    print_rows(rows, f"pipeline parts, {machine()}")
    if options.json:
        write_rows(rows, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
