"""`python -m tests.benchmarks.faults --json FILE [--quick]`: how fast a round gets over a dead, frozen or cut-off peer, and whether
everybody ends with the same model.

One swarm of a host and four peers, as real processes, is disturbed again and again: a round's exchange is slowed to about two
seconds by a cap on uploads, and in the middle of it one of the four is killed, in part or whole, stopped, or cut off; or the opener
ends itself at a point of its commit (doomed_peer.py). Peers mostly idle between steps, so that two cores are enough. Every target is
judged by the worst trial. Beside it stands what hivemind's own averager does in the same situation.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from averaging.models.llama.config import LlamaConfig
from protocol.errors import PotluckError
from protocol.run.data_section import DataSection
from protocol.run.host_sections import CheckpointSection
from protocol.run.manifest import RunConfig, RunSection
from protocol.run.round_section import RoundSection
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.benchmarks.fault_rows import fault_rows, hivemind_rows
from tests.benchmarks.fault_trials import Fault, Stage, Trial
from tests.benchmarks.fault_watch import Watch
from tests.benchmarks.hivemind_kill import HivemindTrial, open_averagers
from tests.benchmarks.places import Places, open_places
from tests.benchmarks.points import DOOM_VARIABLE, DOOMED_PEER, POINTS, DoomFile
from tests.benchmarks.processes import Children, open_children
from tests.benchmarks.results import machine, print_rows, write_rows
from tests.benchmarks.swarm import start_swarm

NUM_PEERS: Final = 4
UPLOAD_BYTES_PER_S: Final = 200_000
SLOWDOWN: Final = 30.0
INTERVAL_S: Final = 3.0
"""Longer than one peer takes to give a whole commit to all others: else a roster that shrank leaves them behind for good."""
HIVEMIND_EXCHANGE_S: Final = 2.5
HIVEMIND_LIMIT_S: Final = 30.0
FIRST_TRIAL_S: Final = 12.0
"""A kind's first trial is taken to last so long."""
NEVER_TOKENS: Final = 1 << 50
"""More tokens than the run will see: rounds follow the clock, and it does not end."""

MID_EXCHANGE: Final = (
    Fault("daemon killed", "daemon"),
    Fault("p2pd killed", "p2pd"),
    Fault("worker killed", "worker"),
    Fault("whole session killed", "session"),
    Fault("asked to leave", "leave"),
    Fault("frozen for 6 s", "freeze"),
)
CUT_OFF: Final = Fault("cut off for 6 s", "cut")
AT_POINTS: Final = tuple(Fault(f"opener killed: {point}", "point", point) for point in POINTS)


@dataclass
class Plan:
    """How much is measured: trials of each kind in mid-exchange, and at each point of a commit, and undisturbed rounds; after how many
    seconds no further trial is begun.
    """

    num_trials: int
    num_at_points: int
    num_calm: int
    num_hivemind_trials: int
    limit_s: float
    seed: int
    only: str = ""
    began_s: float = field(default_factory=time.monotonic)

    def faults(self, can_cut: bool) -> list[Fault]:
        """All kinds in turn, again and again, so that all of them see the same machine."""
        in_exchange = [*MID_EXCHANGE, *([CUT_OFF] if can_cut else [])]
        at_points = list(AT_POINTS * self.num_at_points)
        planned: list[Fault] = []
        for cycle in range(self.num_trials):
            share = -(-len(at_points) // (self.num_trials - cycle))
            planned += [*in_exchange, *at_points[:share]]
            del at_points[:share]
        return [fault for fault in planned if any(word in fault.name for word in self.only.split(","))]

    @property
    def left_s(self) -> float:
        """Until the limit."""
        return self.began_s + self.limit_s - time.monotonic()


def run_config(num_peers: int = NUM_PEERS) -> RunConfig:
    """A run whose rounds follow the clock: tiny model, tiny steps, the project's own sources as text."""
    sources = Path(__file__).parents[2] / "protocol"
    return RunConfig(
        run=RunSection(name="faults", total_tokens=NEVER_TOKENS, min_members=num_peers),
        model=LlamaConfig(dim=64, num_layers=4, num_heads=4, num_kv_heads=2, ffn_dim=176, context_tokens=32),
        data=DataSection(source="text", glob=f"{sources}/**/*.py", heldout_every=5),
        inner=InnerSection(learning_rate=0.001, batch_tokens=64),
        round=RoundSection(target_tokens=NEVER_TOKENS, longest_interval_s=INTERVAL_S, chunk_elements=2048),
        checkpoint=CheckpointSection(every_rounds=1 << 16),
    )


def run_trials(stage: Stage, faults: Sequence[Fault], plan: Plan) -> list[Trial]:
    """One after another; ends early when time is too short for one more of its kind, or the swarm is broken."""
    trials: list[Trial] = []
    longest_s = dict.fromkeys((fault.means for fault in faults), FIRST_TRIAL_S)
    try:
        for position, fault in enumerate(faults):
            if plan.left_s < longest_s[fault.means]:
                print(f"time is up after {position} of {len(faults)} trials", flush=True)
                return trials
            begin_s = time.monotonic()
            trial = stage.run(fault)
            longest_s[fault.means] = max(longest_s[fault.means], time.monotonic() - begin_s)
            if trial is None:
                print(f"{fault.name}: no opener came there", flush=True)
                continue
            trials.append(trial)
            print(describe(trial, time.monotonic() - begin_s), flush=True)
        stage.await_return()
    except PotluckError as error:
        print(f"no more trials: {error.one_line()}", flush=True)
    return trials


def describe(trial: Trial, took_s: float) -> str:
    """One trial in a line."""
    who = f"peer {trial.victim}{', the opener' if trial.was_opener else ''}"
    suspected = " ".join(f"{number}:{at_s:.2f}" for number, at_s in sorted(trial.suspected_s.items()))
    took = "never committed" if trial.round_s is None else f"{trial.round_s:.2f} s"
    back = "" if trial.back_s is None else f", back in {trial.back_s:.1f} s and {trial.rounds_to_count} rounds"
    missed = ", not at that point" if trial.fault.point and not trial.is_at_point else ""
    return (
        f"{trial.fault.name}: round {trial.index}, {who}{missed}: {took}"
        f"{', suspected ' + suspected if suspected else ''}{back} ({took_s:.0f} s)"
    )


def run_hivemind(children: Children, directory: Path, plan: Plan) -> list[HivemindTrial]:
    """hivemind's averager with a vector of the same size."""
    num_elements = model_schema(run_config().model).num_elements
    trials = []
    with open_averagers(children, directory / "hivemind", num_elements, HIVEMIND_EXCHANGE_S) as averagers:
        for number in range(plan.num_hivemind_trials):
            try:
                trials.append(averagers.kill_in_mid_exchange(number, HIVEMIND_LIMIT_S))
                print(f"hivemind: {trials[-1]}", flush=True)
            except PotluckError as error:
                print(f"hivemind: {error.one_line()}", flush=True)
    return trials


@contextmanager
def open_stage(children: Children, directory: Path, places: Places, chance: random.Random) -> Iterator[Stage]:
    """A swarm with a peer in each place, all of them training."""
    doom = DoomFile(directory / "doom")
    swarm = start_swarm(
        children,
        directory,
        places,
        run_config(len(places.peers)),
        peer_environment={"POTLUCK_PEER_UPLOAD_BYTES_PER_S": str(UPLOAD_BYTES_PER_S), DOOM_VARIABLE: str(doom.path)},
        peer_flags=("--device", "cpu", "--num-threads", "1", "--slowdown", str(SLOWDOWN)),
        peer_module=DOOMED_PEER,
    )
    try:
        yield Stage(Watch(swarm), chance, doom)
    finally:
        swarm.close_logs()


def measure(directory: Path, places: Places, plan: Plan) -> tuple[list[Trial], list[float], list[HivemindTrial]]:
    """Everything, in one go: trials, times of undisturbed rounds, and hivemind's trials."""
    faults = plan.faults(places.peers[0].can_be_cut)
    with open_children(directory / "logs") as children:
        hivemind = run_hivemind(children, directory, plan)
        with open_stage(children, directory, places, random.Random(plan.seed)) as stage:
            stage.warm_up(plan.num_calm)
            calm_s = stage.calm_rounds_s()
            trials = run_trials(stage, faults, plan)
            stage.judge(trials)
            return trials, calm_s, hivemind


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.faults", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="one trial of each kind, at most five minutes")
    parser.add_argument("--keep", type=Path, help="keep logs and state in this new folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only kinds with one of these words in their name, as session,leave")
    options = parser.parse_args(arguments)
    plan = Plan(1, 1, 3, 1, 285.0, options.seed) if options.quick else Plan(10, 2, 10, 10, 1740.0, options.seed)
    plan.only = options.only
    before = machine()
    with tempfile.TemporaryDirectory(prefix="potluck-faults-") as temporary, open_places(NUM_PEERS) as places:
        directory = options.keep.absolute() if options.keep else Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        trials, calm_s, hivemind = measure(directory, places, plan)
    settings = {
        "peers": NUM_PEERS,
        "places": places.how,
        "parameters": model_schema(run_config().model).num_elements,
        "upload_bytes_per_s": UPLOAD_BYTES_PER_S,
        "longest_interval_s": INTERVAL_S,
        "slowdown": SLOWDOWN,
        "seed": plan.seed,
        "machine_before": before,
        "machine_after": machine(),
        "took_s": round(time.monotonic() - plan.began_s),
    }
    rows = [*fault_rows(trials, calm_s, hivemind, settings), *hivemind_rows(hivemind, settings)]
    write_rows(rows, options.json)
    print_rows(rows, "faults: four peers, one of them disturbed")
    print(f"places: {places.how}; machine before {before}, after {settings['machine_after']}; {settings['took_s']} s")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
